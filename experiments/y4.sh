set -u
test -f /root/peers/sitepart0 || { echo "another machine: sitepart0 is gone"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sitepart0 .gpu/sitepart1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
timeout -s INT 530 python3 -m rooftile bench attention_options attention attention_varlen rotary_attention attention_qkvpacked --against torch,compile,fa4,flex --stale --record --within 490 --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -i left $OUT/b.log | tail -2 | cut -c1-900; tail -3 $OUT/b.log | cut -c1-300
tar czf $OUT/records.tgz records
