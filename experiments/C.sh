# call C: attention's rows that are left. carry: C.sh commit sp2 peers2.xz
set -u
test -f /root/peers/sp1 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sp0 /root/peers/sp1 .gpu/sp2 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
for ops in "attention attention_varlen" "rotary_attention attention_qkvpacked"; do
timeout -s INT ${1:-230} python3 -m rooftile bench $ops --against torch,compile,fa4,flex --stale --record --within ${2:-200} --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -i "^left" $OUT/b.log | tail -20 | cut -c1-150; tail -2 $OUT/b.log | cut -c1-200
done
tar czf $OUT/records.tgz records
