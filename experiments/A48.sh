set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src; nvidia-smi -L | cut -c1-30
timeout 60 python3 .gpu/auto48.py > $OUT/auto.txt 2>&1; echo auto rc $?; tail -3 $OUT/auto.txt | cut -c1-160; date +%T
mkdir -p $OUT/seg; cp src/rooftile/ops/segment_sum/*_kernels.py $OUT/seg/
timeout 45 python3 .gpu/seg48.py > $OUT/seg.txt 2>&1; echo seg rc $?; date +%T
timeout -s INT 110 python3 -m rooftile check segment_sum segment_sum_backward attention_decode attention_decode_e4m3 gemm linear mlp gated_mlp linear_add gemv gemv_backward grad_norm --device cuda --jobs 16 --stale --record --within 85 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250 | head; tail -1 $OUT/c.txt | cut -c1-200; date +%T
timeout -s INT 150 python3 -m rooftile bench segment_sum segment_sum_backward attention_decode_e4m3 attention_decode --against torch,compile --stale --record --within 120 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/d.log | cut -c1-120
date +%T; tar czf $OUT/records.tgz records
