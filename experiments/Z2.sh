# carry: Z2.sh commit sp1 peers2.xz liger.tar.xz; after Z1 on the same machine
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
P=torch,compile
if [ -f /root/peers/sp0 ]; then
mkdir -p /tmp/site; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
export PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages; P=torch,compile,fa4
else echo "another machine"; fi
timeout -s INT 255 python3 -m rooftile bench attention_backward attention_options_backward attention_varlen_backward rotary_attention_backward attention_qkvpacked_backward attention_options --against $P --stale --record --within 215 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left" $OUT/b.log | cut -c1-70
date +%T; tar czf $OUT/records.tgz records
