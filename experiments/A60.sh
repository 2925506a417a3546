set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
nvidia-smi -L | cut -c1-60; nvidia-smi --query-gpu=power.limit,clocks.max.sm,temperature.gpu --format=csv,noheader; date +%T
timeout -s INT -k 20 120 python3 .gpu/lab60.py 30 > $OUT/lab60.txt 2>&1; echo lab60 $?; cut -c1-700 $OUT/lab60.txt; date +%T
timeout -s INT -k 20 100 python3 .gpu/lab61.py 5 > $OUT/lab61.txt 2>&1; echo lab61 $?; cut -c1-1100 $OUT/lab61.txt; date +%T
