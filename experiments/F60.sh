set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
mkdir -p /root/peers; cp .gpu/sp0 /root/peers/
nvidia-smi -L | cut -c1-60; date +%T
timeout -s INT -k 20 60 python3 .gpu/norm61/lab.py > $OUT/norm61.txt 2>&1; echo norm61 $?; date +%T
timeout -s INT -k 20 80 python3 .gpu/seg61/lab.py 1500 > $OUT/seg61.txt 2>&1; echo seg61 $?; date +%T
cut -c1-300 $OUT/norm61.txt | tail -80; cut -c1-900 $OUT/seg61.txt
