set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:tests
nvidia-smi -L | cut -c1-60; date +%T; df -h /dev/shm | tail -1
timeout -s INT -k 20 90 python3 .gpu/rows64/lab.py 80 2>&1 | tail -40
python3 -m pytest --version 2>&1 | head -1
timeout 40 python3 -m pytest -q -m gpu -p no:cacheprovider tests/test_timing.py tests/ops/test_segment_sum.py -k "gpu" 2>&1 | tail -5
date +%T
