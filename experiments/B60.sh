set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
nvidia-smi -L | cut -c1-60; date +%T
timeout -s INT -k 20 70 python3 .gpu/lab63.py 3 > $OUT/lab63.txt 2>&1; echo lab63 $?; cut -c1-700 $OUT/lab63.txt; date +%T
timeout -s INT -k 20 90 python3 .gpu/lab62.py 40 > $OUT/lab62.txt 2>&1; echo lab62 $?; cut -c1-600 $OUT/lab62.txt; date +%T
timeout -s INT -k 20 80 python3 .gpu/emb60/lab.py > $OUT/emb60.txt 2>&1; echo emb60 $?; date +%T
timeout -s INT -k 20 90 python3 .gpu/norm60/lab.py > $OUT/norm60.txt 2>&1; echo norm60 $?; date +%T
timeout -s INT -k 20 90 python3 .gpu/seg60/lab.py > $OUT/seg60.txt 2>&1; echo seg60 $?; date +%T
cut -c1-1500 $OUT/emb60.txt
