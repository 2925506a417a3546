# session 51, first call: after the three commits of `next` (cherry-pick). carry: A51.sh lab51.py auto51.py commit sp0 liger.tar.xz. Then B50.sh (sp1 peers2.xz) on the same machine within 30 s.
set -u
mkdir -p /root/peers /tmp/lig; cp .gpu/sp0 /root/peers/; nvidia-smi -L | cut -c1-60; date +%T
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
timeout 40 python3 .gpu/auto51.py > $OUT/auto.txt 2>&1; echo auto $?; cat $OUT/auto.txt | cut -c1-500; date +%T
timeout 60 python3 .gpu/lab51.py > $OUT/lab.txt 2>&1; echo lab $?; tail -2 $OUT/lab.txt; date +%T
timeout -s INT 130 python3 -m rooftile check attention attention_options attention_varlen attention_decode attention_decode_e4m3 segment_sum gated_mlp mlp rotary_attention --device cuda --jobs 16 --stale --record --within 110 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-200; tail -2 $OUT/c.txt | cut -c1-200; date +%T
timeout -s INT 110 python3 -m rooftile bench attention_decode attention_decode_e4m3 segment_sum gated_mlp mlp concat_kv --against torch,compile --stale --record --within 90 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/d.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
