nvidia-smi -L | cut -c1-50
if nvidia-smi -L | grep -q H200; then bash .gpu/y1.sh; exit; fi
export PYTHONPATH=src ROOFTILE_CACHE=/tmp/rc; timeout -s INT 480 python3 -m pytest -q tests/test_sanitizer.py -m "gpu and thorough" > $OUT/san.log 2>&1; echo rc $?; tail -30 $OUT/san.log | cut -c1-250
