set -u
nvidia-smi -L | cut -c1-30
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
test -n "$*" && timeout 100 python3 .gpu/seg.py $* 2>&1 | grep -v arn
