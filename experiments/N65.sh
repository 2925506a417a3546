set -u
export PYTHONPATH=src
nvidia-smi -L | cut -c1-40; date +%T
timeout 40 python3 .gpu/host65/combo.py > $OUT/combo.txt 2>&1; tail -20 $OUT/combo.txt | cut -c1-200
timeout 40 python3 .gpu/host65/prof.py > $OUT/prof.txt 2>&1; head -2 $OUT/prof.txt; tail -3 $OUT/prof.txt; date +%T
timeout 60 python3 .gpu/bwd65/lab.py > $OUT/bwd.txt 2>&1; cat $OUT/bwd.txt | cut -c1-420; date +%T
timeout 100 python3 -m pytest -q -p no:cacheprovider -m gpu tests/test_replay.py > $OUT/replay.log 2>&1; tail -12 $OUT/replay.log | cut -c1-250; date +%T
