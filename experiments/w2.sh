# second call, at once; carry .gpu/w2.sh .gpu/commit .gpu/sitepart1 .gpu/peers2.xz. Refuses another machine than w1's.
set -eu
test -f /root/peers/sitepart0 || { echo "another machine: sitepart0 is gone; run w1 again"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sitepart0 .gpu/sitepart1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
timeout -s INT 500 python3 -m rooftile bench attention attention_varlen attention_options rotary_attention attention_qkvpacked --against torch,compile,fa4,flex --record --within 460 --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -i left $OUT/b.log | tail -2; tail -3 $OUT/b.log
tar czf $OUT/records.tgz records
