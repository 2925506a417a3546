# last call: suites go on where the record ends (PyTorch's end in 340 s). carry: F59.sh commit
set -u
date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT -k 20 400 python3 -m rooftile suites --record --stale --within 340 --jobs 16 > $OUT/s.log 2>&1; echo suites rc $?; tail -14 $OUT/s.log | cut -c1-400; date +%T
tar czf $OUT/records.tgz records
