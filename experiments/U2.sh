set -u
nvidia-smi -L | cut -c1-30
export PYTHONPATH=src
timeout -s KILL 80 python3 .gpu/mlp43/run.py time > $OUT/run.txt 2>&1; cat $OUT/run.txt | cut -c1-160
