# x2: GPU 0 compute-sanitizer over the whole suite; GPU 1 lab of sums, linear_cross_entropy and rope_overwrite, counters, host lab. carry: S65.sh liger.tar.xz commit sums64 host65 counters.sh
set -u
mkdir -p /tmp/lig /tmp/r1; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -; cp -r records /tmp/r1/
export ROOFTILE_COMMIT=$(cat .gpu/commit)
nvidia-smi -L | cut -c1-50; date +%T; nproc; which compute-sanitizer ncu
( export CUDA_VISIBLE_DEVICES=0 PYTHONPATH=src ROOFTILE_CACHE=/tmp/rc0
  taskset -c 0-25 timeout -s INT -k 20 430 python3 -m pytest -q -p no:cacheprovider tests/test_sanitizer.py -m "gpu and thorough" > $OUT/san.log 2>&1; echo "sanitizers rc $?"; grep -a "^FAILED\|^ERROR\|passed\|failed" $OUT/san.log | cut -c1-220; date +%T ) > /tmp/g0.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=1 PYTHONPATH=src:/tmp/lig
  run() { taskset -c 26-31 "$@"; }
  run timeout -s INT -k 10 60 python3 .gpu/sums64/lab2.py 40 > $OUT/sums.txt 2>&1; echo "sums rc $?"; cat $OUT/sums.txt | cut -c1-200 | head -40; date +%T
  run timeout -s INT -k 20 170 python3 -m rooftile bench linear_cross_entropy rope_overwrite --against torch,compile,liger --record --folder /tmp/r1/records --within 120 --jobs 6 > $OUT/l.log 2>&1; echo "lce rc $?"; grep -i "^left\|^seconds" $OUT/l.log | cut -c1-300; date +%T
  run timeout -s INT -k 20 90 python3 -m rooftile bench linear_cross_entropy_frozen linear_cross_entropy_ahead --against torch,compile,liger --stale --record --folder /tmp/r1/records --within 60 --jobs 6 > $OUT/l2.log 2>&1; echo "lce rc $?"; grep -i "^left\|^seconds" $OUT/l2.log | cut -c1-300; date +%T
  tar czf $OUT/records1.tgz -C /tmp/r1 records
  run timeout 60 python3 .gpu/host65/lab.py > $OUT/host.txt 2>&1; cat $OUT/host.txt; date +%T
  run bash .gpu/counters.sh softmax transpose; date +%T ) > /tmp/g1.txt 2>&1 &
wait; cat /tmp/g0.txt /tmp/g1.txt
