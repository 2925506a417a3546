# session 50, first call. carry: C50.sh lab50.py gate50.py prof43.py auto50.py commit sp0 liger.tar.xz
set -u
mkdir -p /root/peers /tmp/lig; cp .gpu/sp0 /root/peers/; nvidia-smi -L | cut -c1-30; date +%T
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
timeout 75 python3 .gpu/auto50.py > $OUT/auto.txt 2>&1; echo auto $?; cat $OUT/auto.txt | cut -c1-90; mkdir $OUT/seg; cp src/rooftile/ops/segment_sum/{spread,warps}_kernels.py $OUT/seg; date +%T
timeout -s INT 70 python3 -m rooftile check segment_sum attention_decode attention_decode_e4m3 --device cuda --jobs 16 --stale --record --within 50 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-200; tail -2 $OUT/c.txt | cut -c1-200; date +%T
timeout -s INT 110 python3 -m rooftile bench attention_decode attention_decode_e4m3 segment_sum grad_norm --against torch,compile --stale --record --within 90 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/d.log | cut -c1-120
date +%T; tar czf $OUT/records.tgz records
timeout 150 python3 .gpu/lab50.py 2048,4096,5504,8192 > $OUT/lab.txt 2>&1; echo lab $?; tail -8 $OUT/lab.txt | cut -c1-200; date +%T
timeout 60 python3 .gpu/gate50.py > $OUT/gate.txt 2>&1; echo gate $?; cat $OUT/gate.txt | cut -c1-110; date +%T
timeout 45 python3 .gpu/prof43.py llama $OUT/tl.txt > $OUT/prof.txt 2>&1; echo prof $?; head -3 $OUT/prof.txt; date +%T
gzip $OUT/tl.txt
