# after A57.sh. carry: C58.sh commit sp1 peers2.xz
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
date +%T; PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages timeout -s INT -k 20 300 python3 -m rooftile bench attention --against torch,compile,fa4,flex,fa2 --stale --record --within 270 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-400; date +%T
timeout -s INT -k 20 130 python3 -m rooftile bench rotary_attention attention_decode_e4m3 --against torch,compile --stale --record --within 110 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/d.log | cut -c1-300; date +%T
timeout -s INT -k 20 140 python3 -m rooftile check attention attention_options attention_decode_e4m3 rotary_attention attention_qkvpacked attention_varlen --device cuda --jobs 16 --stale --record --within 110 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250; tail -2 $OUT/c.txt | cut -c1-400; date +%T
tar czf $OUT/records.tgz records
