# session 52, third call: gate with repeats, suites. carry: C52.sh commit. Then D52.sh on the same machine.
set -u
nvidia-smi -L | cut -c1-60; date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT 290 python3 -m rooftile check attention_decode attention attention_varlen attention_options --device cuda --jobs 16 --record --within 230 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250; tail -3 $OUT/c.txt | cut -c1-600; date +%T
tar czf $OUT/records.tgz records
timeout -s INT 190 python3 -m rooftile suites --record --within 140 --jobs 16 > $OUT/s.log 2>&1; echo suites rc $?; tail -12 $OUT/s.log | cut -c1-400; date +%T
tar czf $OUT/records.tgz records
timeout -s INT 60 python3 -m rooftile bench segment_sum --against torch,compile --stale --record --within 45 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/d.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
