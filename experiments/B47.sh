# carry: B47.sh commit sp1 peers2.xz; after A47.
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
export PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
date +%T
timeout -s INT 190 python3 -m rooftile bench attention --against torch,compile,fa4,flex --stale --record --within 165 --jobs 15 > $OUT/a.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/a.log | cut -c1-120; date +%T
timeout -s INT 270 python3 -m rooftile bench attention_options attention_options_backward attention_varlen attention_varlen_backward attention_qkvpacked_backward rotary_attention rotary_attention_backward --against torch,compile,fa4,flex --stale --record --within 235 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-120
date +%T; tar czf $OUT/records.tgz records
