# session 53 (49 in the house's count), first call, on branch `next` (git cherry-pick the two commits of `onepass`). carry: A53.sh lab53.py onepass53.py commit
set -u
nvidia-smi -L | cut -c1-60; date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout 70 python3 .gpu/onepass53.py > $OUT/one.txt 2>&1; echo one $?; cat $OUT/one.txt | cut -c1-500; date +%T
timeout 130 python3 .gpu/lab53.py 64 0.06 > $OUT/lab.txt 2>&1; echo lab $?; cut -c1-420 $OUT/lab.txt; date +%T
# the suites: a kind of points a process; 16 processes compile
timeout -s INT -k 20 330 python3 -m rooftile suites --record --within 270 --jobs 16 > $OUT/s.log 2>&1; echo suites rc $?; tail -5 $OUT/s.log | cut -c1-400; date +%T
tar czf $OUT/records.tgz records
