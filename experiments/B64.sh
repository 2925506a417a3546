# labs of the helpers
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
nvidia-smi -L | cut -c1-60; date +%T
for n in sums64 rows64b; do timeout -s INT -k 10 80 python3 .gpu/$n/lab.py 60 > /tmp/$n.txt 2>&1; echo "== $n rc $?"; date +%T; cp /tmp/$n.txt $OUT/; done
timeout 60 python3 .gpu/func_gpu.py 2>&1 | tail -8
tail -45 /tmp/sums64.txt | cut -c1-200; tail -45 /tmp/rows64b.txt | cut -c1-200
