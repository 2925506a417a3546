# session 54 (49 in the house's count), first call, on branch `next`. carry: A54.sh onepass54.py onepass_tma.py lab53.py commit liger.tar.xz
set -u
mkdir -p /tmp/lig; nvidia-smi -L | cut -c1-60; date +%T
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
timeout -k 5 90 python3 .gpu/onepass54.py > $OUT/one.txt 2>&1; echo one $?; cat $OUT/one.txt | cut -c1-900; date +%T
timeout -k 5 130 python3 .gpu/lab53.py 64 0.06 > $OUT/lab.txt 2>&1; echo lab $?; cut -c1-420 $OUT/lab.txt; date +%T
timeout -s INT -k 20 70 python3 -m rooftile check segment_sum --device cuda --jobs 16 --stale --record --within 50 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250; tail -2 $OUT/c.txt | cut -c1-300; date +%T
timeout -s INT -k 20 90 python3 -m rooftile bench segment_sum --against torch,compile --stale --record --within 70 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/d.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
timeout -s INT -k 20 150 python3 -m rooftile bench layernorm reglu geglu_again reglu_again swiglu_again cross_entropy_overwrite residual_add_overwrite rope --against torch,compile,liger --stale --record --within 125 --jobs 15 > $OUT/e.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/e.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
