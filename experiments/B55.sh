# session 55, second call, the same machine or another. carry: B55.sh algo55.py wide55.py commit liger.tar.xz
set -u
mkdir -p /tmp/lig; nvidia-smi -L | cut -c1-60; date +%T
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
timeout -k 5 130 python3 .gpu/algo55.py 7 > $OUT/algo.txt 2>&1; echo algo $?; cut -c1-700 $OUT/algo.txt; date +%T
timeout -k 5 60 python3 .gpu/wide55.py > $OUT/wide.txt 2>&1; echo wide $?; cut -c1-900 $OUT/wide.txt; date +%T
timeout -s INT -k 20 150 python3 -m rooftile check concat_kv cross_entropy cross_entropy_overwrite embedding gelu gemm gemv layernorm linear linear_cross_entropy rope softmax reglu --device cuda --jobs 16 --stale --record --within 120 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250; tail -2 $OUT/c.txt | cut -c1-300; date +%T
tar czf $OUT/records.tgz records
timeout -s INT -k 20 100 python3 -m rooftile bench gated_mlp --against torch,compile,liger --record --within 75 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/d.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
