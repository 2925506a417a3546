set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
nvidia-smi -L
timeout -s INT 222 python3 -m rooftile bench scaling.llama-1.2b --record > $OUT/b.log 2>&1; echo rc $?; tail -12 $OUT/b.log | cut -c1-300
tar czf $OUT/records.tgz records
