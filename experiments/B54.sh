# session 54, second call. carry: B54.sh onepass55.py onepass_lab.py lab54.py commit
set -u
nvidia-smi -L | cut -c1-60; date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -k 5 90 python3 .gpu/onepass55.py > $OUT/one.txt 2>&1; echo one $?; cat $OUT/one.txt | cut -c1-1500; date +%T
timeout -k 5 60 python3 .gpu/lab54.py 64 0.06 > $OUT/lab.txt 2>&1; echo lab $?; cut -c1-420 $OUT/lab.txt; date +%T
timeout -s INT -k 20 190 python3 -m rooftile bench gemm linear linear_add gemv embedding_accumulate rope_overwrite --against torch,compile --stale --record --within 165 --jobs 15 > $OUT/e.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/e.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
