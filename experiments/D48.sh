set -u
export PYTHONPATH=src; nvidia-smi -L | cut -c1-30
timeout 60 python3 .gpu/hint48.py > $OUT/hint.txt 2>&1; echo rc $?; date +%T
timeout 100 python3 .gpu/dec48.py > $OUT/dec.txt 2>&1; echo rc $?; tail -3 $OUT/dec.txt | cut -c1-200; date +%T
