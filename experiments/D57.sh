# last call: suites, which go on where the record ends. carry: D57.sh commit
set -u
nvidia-smi -L | cut -c1-60; date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT -k 20 400 python3 -m rooftile suites --record --stale --within 340 --jobs 16 > $OUT/s.log 2>&1; echo suites rc $?; tail -14 $OUT/s.log | cut -c1-400; date +%T
tar czf $OUT/records.tgz records
