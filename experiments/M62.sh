set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT -k 10 60 python3 .gpu/ln62/lab.py > $OUT/ln62.txt 2>&1; date +%T
timeout -s INT -k 10 60 python3 .gpu/seg62/lab.py > $OUT/seg62.txt 2>&1; date +%T
timeout -s INT -k 10 80 python3 .gpu/bias62/lab2.py 60 > $OUT/bias62b.txt 2>&1; date +%T
timeout -s INT -k 10 80 python3 .gpu/gemv62/lab2.py 40 > $OUT/gemv62b.txt 2>&1; date +%T
tail -c 2500 $OUT/ln62.txt; cut -c1-1500 $OUT/seg62.txt
