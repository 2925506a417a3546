set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT 580 python3 -m rooftile bench losses.gpt2-124m losses.llama-1.2b --record > $OUT/b.log 2>&1; echo rc $?; tail -12 $OUT/b.log | cut -c1-400
tar czf $OUT/records.tgz records
