# last call: suites, as long as there is device time. carry: F58.sh commit
set -u
date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT -k 20 ${1:-300} python3 -m rooftile suites --record --stale --within ${2:-230} --jobs 16 > $OUT/s.log 2>&1; echo suites rc $?; tail -14 $OUT/s.log | cut -c1-400; date +%T
tar czf $OUT/records.tgz records
