# session 51 of the house, first call, on next51. carry: B56.sh algo55.py wide55.py commit
set -u
nvidia-smi -L | cut -c1-60; date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -k 5 140 python3 .gpu/algo55.py 7 > $OUT/algo.txt 2>&1; echo algo $?; cut -c1-700 $OUT/algo.txt; date +%T
timeout -k 5 75 python3 .gpu/wide55.py > $OUT/wide.txt 2>&1; echo wide $?; cut -c1-900 $OUT/wide.txt; date +%T
