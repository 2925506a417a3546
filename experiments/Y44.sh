# carry: Y44.sh commit sp1 peers2.xz liger.tar.xz; after X44 on the same machine
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site
export PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
timeout -s INT 290 python3 -m rooftile bench attention_backward attention_varlen_backward attention_qkvpacked_backward attention_options attention_varlen rotary_attention_backward --against torch,compile,fa4,flex --stale --record --within 260 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left" $OUT/b.log | cut -c1-100
date +%T; tar czf $OUT/records.tgz records
