# session 55 (50 in the house's count), first call. carry: A55.sh commit. The suites, a kind of each in turn; sixteen processes (56 on four GPUs took all their time to begin)
set -u
nvidia-smi -L | cut -c1-60; date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT -k 20 570 python3 -m rooftile suites --record --within 480 --jobs 16 > $OUT/s.log 2>&1; echo suites rc $?; tail -14 $OUT/s.log | cut -c1-400; date +%T
tar czf $OUT/records.tgz records
