set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT -k 20 200 python3 -m rooftile suites --record --stale --within 160 --jobs 16 > $OUT/s.log 2>&1; echo suites rc $?; tail -14 $OUT/s.log | cut -c1-400
tar czf $OUT/records.tgz records
