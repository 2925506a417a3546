# session 54, last call: suites on a machine with many processors. carry: E54.sh commit
set -u
nvidia-smi -L | cut -c1-40; nproc; date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
J=$(( $(nproc) - 4 )); [ $J -gt 56 ] && J=56
timeout -s INT -k 15 205 python3 -m rooftile suites --record --within 165 --jobs $J > $OUT/s.log 2>&1; echo suites rc $?; tail -14 $OUT/s.log | cut -c1-400; date +%T
tar czf $OUT/records.tgz records
timeout -s INT -k 10 45 python3 -m rooftile check attention_qkvpacked concat_kv --device cuda --jobs 16 --stale --record --within 25 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250; tail -3 $OUT/c.txt | cut -c1-300; date +%T
tar czf $OUT/records.tgz records
