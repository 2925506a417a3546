# second call, at once: attention's rows that are left. carry: q2.sh commit sitepart1 peers2.xz
set -u
test -f /root/peers/sitepart0 || { echo "another machine: sitepart0 is gone"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sitepart0 .gpu/sitepart1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
timeout -s INT 380 python3 -m rooftile bench attention attention_varlen rotary_attention attention_qkvpacked --against torch,compile,fa4,flex --stale --record --within 350 --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -i "^left" $OUT/b.log | tail -20 | cut -c1-150; tail -2 $OUT/b.log | cut -c1-200
tar czf $OUT/records.tgz records
