# session 45's last call. carry: L46.sh commit seg7.py pick7.py dec46.py
set -u
nvidia-smi -L | cut -c1-30; export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT 75 python3 .gpu/seg7.py > $OUT/seg7.txt 2>&1; echo seg rc $?; cat $OUT/seg7.txt
python3 .gpu/pick7.py $OUT/seg7.txt; cp src/rooftile/ops/segment_sum/warps_kernels.py src/rooftile/ops/segment_sum/cuda/v7_warps.cu $OUT/
timeout -s INT 45 python3 -m rooftile check segment_sum --device cuda --jobs 16 --stale --record --within 28 > $OUT/c.txt 2>&1; echo check rc $?; tail -2 $OUT/c.txt | cut -c1-200
timeout -s INT 60 python3 -m rooftile bench segment_sum --against torch,compile --stale --record --within 40 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-120
tar czf $OUT/records.tgz records
timeout -s INT 45 python3 .gpu/dec46.py > $OUT/dec.txt 2>&1; echo dec rc $?; cat $OUT/dec.txt | tail -18
date +%T
