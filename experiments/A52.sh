# session 52 (48 in the house's count), first call. carry: A52.sh lab52.py auto51.py commit sp0. Then B52.sh on the same machine within 30 s.
set -u
mkdir -p /root/peers; cp .gpu/sp0 /root/peers/; nvidia-smi -L | cut -c1-60; date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout 40 python3 .gpu/auto51.py > $OUT/auto.txt 2>&1; echo auto $?; cat $OUT/auto.txt | cut -c1-600; date +%T
timeout 130 python3 .gpu/lab52.py > $OUT/lab.txt 2>&1; echo lab $?; tail -12 $OUT/lab.txt | cut -c1-300; date +%T
timeout -s INT 200 python3 -m rooftile check attention attention_backward attention_options attention_varlen attention_decode --device cuda --jobs 16 --record --within 170 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-200; tail -2 $OUT/c.txt | cut -c1-200; date +%T
tar czf $OUT/records.tgz records
timeout -s INT 70 python3 -m rooftile check attention_decode_e4m3 segment_sum gated_mlp mlp rotary_attention --device cuda --jobs 16 --stale --record --within 60 > $OUT/c2.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c2.txt | cut -c1-200; tail -2 $OUT/c2.txt | cut -c1-200; date +%T
timeout -s INT 80 python3 -m rooftile bench attention_decode attention_decode_e4m3 gated_mlp mlp concat_kv --against torch,compile --stale --record --within 70 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/d.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
