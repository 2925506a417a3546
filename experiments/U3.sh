set -u
nvidia-smi -L | cut -c1-30
export PYTHONPATH=src
timeout -s KILL 40 python3 .gpu/sums43.py > $OUT/sums.txt 2>&1; cat $OUT/sums.txt | cut -c1-330
timeout -s KILL 60 python3 .gpu/step43.py > $OUT/step.txt 2>&1; tail -5 $OUT/step.txt | cut -c1-330
