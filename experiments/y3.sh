set -u
test -f /root/peers/sitepart0 || { echo "another machine: sitepart0 is gone"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sitepart0 .gpu/sitepart1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -; xz -dc .gpu/liger.tar.xz | tar -C /tmp/site -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
timeout -s INT 130 python3 -m rooftile bench linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen --against torch,compile,liger --stale --record --within 110 --jobs 15 > $OUT/l.log 2>&1; echo rc $?; grep -i left $OUT/l.log | tail -2 | cut -c1-300; tail -2 $OUT/l.log | cut -c1-300
timeout -s INT 480 python3 -m rooftile bench attention attention_varlen attention_options rotary_attention attention_qkvpacked --against torch,compile,fa4,flex --stale --record --within 440 --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -i left $OUT/b.log | tail -2 | cut -c1-600; tail -3 $OUT/b.log | cut -c1-300
tar czf $OUT/records.tgz records
