# carry: D50.sh icache50.py commit liger.tar.xz
set -u
mkdir -p /tmp/lig; nvidia-smi -L | cut -c1-30; date +%T
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
timeout -s INT 60 python3 -m rooftile check attention_decode attention_decode_e4m3 --device cuda --jobs 16 --stale --record --within 40 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-200; tail -2 $OUT/c.txt | cut -c1-200; date +%T
timeout -s INT 80 python3 -m rooftile bench attention_decode attention_decode_e4m3 --against torch,compile --stale --record --within 60 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep "v2_frag\|  triton\| triton \|copy" $OUT/d.log | cut -c20-60,120-180; date +%T
tar czf $OUT/records.tgz records
timeout 50 python3 .gpu/icache50.py > $OUT/icache.txt 2>&1; echo icache $?; cat $OUT/icache.txt | cut -c1-120; date +%T
timeout -s INT 175 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; date +%T
timeout -s INT 140 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; date +%T
tar czf $OUT/records.tgz records
timeout -s INT 90 python3 -m rooftile bench linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen --against torch,compile,liger --stale --record --within 75 --jobs 15 > $OUT/l.log 2>&1; echo lce rc $?; grep -i "^left\|^seconds" $OUT/l.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
