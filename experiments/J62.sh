# first call: attention's Triton forward (lab66), the Llama step's kernels. carry: J62.sh lab66.py fw66 liger.tar.xz commit
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
nvidia-smi -L | cut -c1-60; date +%T
timeout -s INT -k 20 90 python3 .gpu/lab66.py 28 > $OUT/lab66.txt 2>&1; echo lab66 $?; cut -c1-400 $OUT/lab66.txt; date +%T
(sleep 25; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader; sleep 3; done) > $OUT/clocks.txt 2>&1 &
timeout -s INT -k 20 110 python3 -m rooftile profile train --model llama-1.2b --weights bfloat16 --context 4096 --batch-size 4 --out $OUT/prof > $OUT/prof.txt 2>&1; echo prof $?; tail -60 $OUT/prof.txt | cut -c1-170; date +%T; sort $OUT/clocks.txt | uniq -c | sort -rn | head -5
