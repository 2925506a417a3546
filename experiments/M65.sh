# x2: quiet host lab, then dec65 on GPU 0 and port65 on GPU 1
set -u
export PYTHONPATH=src
nvidia-smi -L | cut -c1-40; date +%T
CUDA_VISIBLE_DEVICES=0 timeout 40 python3 .gpu/host65/lab.py > $OUT/host.txt 2>&1; CUDA_VISIBLE_DEVICES=0 timeout 40 python3 .gpu/host65/prof.py > $OUT/prof.txt 2>&1; date +%T
( CUDA_VISIBLE_DEVICES=0 timeout -s INT -k 10 110 python3 .gpu/dec65/lab.py > $OUT/dec.txt 2>&1; echo "dec rc $?"; date +%T ) &
( CUDA_VISIBLE_DEVICES=1 timeout -s INT -k 10 130 python3 .gpu/port65/lab.py > $OUT/port.txt 2>&1; echo "port rc $?"; date +%T ) &
wait; tail -c 3500 $OUT/dec.txt; tail -c 5000 $OUT/port.txt
