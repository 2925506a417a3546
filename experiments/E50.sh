# carry: E50.sh page51.py v2_new1.cu commit
set -u
nvidia-smi -L | cut -c1-60; date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout 60 python3 .gpu/page51.py > $OUT/p.txt 2>&1; echo $?; cat $OUT/p.txt | cut -c1-600; date +%T
timeout -s INT 50 python3 -m rooftile check attention_decode attention_decode_e4m3 --device cuda --jobs 16 --stale --record --within 40 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-200; tail -2 $OUT/c.txt | cut -c1-200; date +%T
timeout -s INT 80 python3 -m rooftile bench attention_decode attention_decode_e4m3 --against torch,compile --stale --record --within 60 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep "v2_frag\|  triton\| triton \|copy" $OUT/d.log | cut -c26-40,120-180; date +%T
tar czf $OUT/records.tgz records
timeout -s INT 130 python3 -m rooftile bench rotary_attention attention_qkvpacked linear_add gemv linear gemm --against torch,compile --stale --record --within ${1:-100} --jobs 15 > $OUT/e.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/e.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
