set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT -k 20 90 python3 .gpu/prof62.py > $OUT/p.txt 2>&1; cut -c1-190 $OUT/p.txt
