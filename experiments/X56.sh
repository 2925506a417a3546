# session 56, on next51. carry: X56.sh lab56.py commit sp0. Then Y56.sh on the same machine.
set -u
mkdir -p /root/peers; cp .gpu/sp0 /root/peers/; nvidia-smi -L | cut -c1-60; date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -k 5 130 python3 .gpu/lab56.py > $OUT/lab.txt 2>&1; echo lab $?; cut -c1-300 $OUT/lab.txt; date +%T
timeout -s INT -k 20 70 python3 -m rooftile bench segment_sum --against torch,compile --stale --record --within 55 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/d.log | cut -c1-120; date +%T
timeout -s INT -k 20 90 python3 -m rooftile bench attention_qkvpacked rotary_attention --against torch,compile --stale --record --within 70 --jobs 15 > $OUT/e.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/e.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
