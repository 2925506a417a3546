# x2: host figures quiet, then dec65 lab2 on GPU 0 and port65 lab2 on GPU 1
set -u
export PYTHONPATH=src
nvidia-smi -L | cut -c1-40; date +%T
CUDA_VISIBLE_DEVICES=0 timeout 40 python3 .gpu/host65/combo.py > $OUT/combo.txt 2>&1; tail -7 $OUT/combo.txt; CUDA_VISIBLE_DEVICES=0 timeout 40 python3 .gpu/host65/prof.py > $OUT/prof.txt 2>&1; head -2 $OUT/prof.txt; date +%T
( export CUDA_VISIBLE_DEVICES=0; timeout -s INT -k 10 90 python3 .gpu/dec65/lab2.py > $OUT/dec2.txt 2>&1; echo "dec rc $?"; date +%T; timeout 70 python3 .gpu/bwd65/lab.py > $OUT/bwd.txt 2>&1; date +%T; timeout 90 python3 -m pytest -q -p no:cacheprovider -m gpu tests/test_replay.py > $OUT/replay.log 2>&1; tail -5 $OUT/replay.log | cut -c1-250; date +%T ) &
( CUDA_VISIBLE_DEVICES=1 timeout -s INT -k 10 130 python3 .gpu/port65/lab2.py > $OUT/port2.txt 2>&1; echo "port rc $?"; date +%T ) &
wait; cat $OUT/bwd.txt | cut -c1-420; tail -c 2500 $OUT/dec2.txt; tail -c 4500 $OUT/port2.txt
