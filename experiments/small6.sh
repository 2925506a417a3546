set -u
PYTHONPATH=src timeout 400 python3 .gpu/small6.py 2>$OUT/err.log; tail -3 $OUT/err.log
