nvidia-smi -L | cut -c1-50
if nvidia-smi -L | grep -q H200; then bash .gpu/y1.sh; exit; fi
(export PYTHONPATH=src PYTORCH_NO_CUDA_MEMORY_CACHING=1 ROOFTILE_CACHE=/tmp/rc; timeout 100 compute-sanitizer --tool racecheck --racecheck-report hazard --print-limit 60 python3 tests/sanitized.py log_softmax > $OUT/hazard.txt 2>&1) &
bash .gpu/counters.sh softmax; wait; grep -v Host $OUT/hazard.txt | head -40 | cut -c1-200
