# carry: P56.sh lab57.py commit
set -u
nvidia-smi -L | cut -c1-60; date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -k 5 120 python3 .gpu/lab57.py > $OUT/lab.txt 2>&1; echo lab $?; cut -c1-300 $OUT/lab.txt; date +%T
timeout -s INT -k 20 130 python3 -m rooftile check attention attention_qkvpacked rotary_attention segment_sum --device cuda --jobs 16 --stale --record --within 100 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250; tail -2 $OUT/c.txt | cut -c1-400; date +%T
tar czf $OUT/records.tgz records
