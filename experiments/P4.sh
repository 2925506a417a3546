set -u
nvidia-smi -L | cut -c1-30
export PYTHONPATH=src
timeout 110 python3 .gpu/elim.py 2>&1 | grep -v arn
