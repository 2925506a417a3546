# session 53, second call on the same machine (or another): what of attention has not been repeated, and segment_sum's rows. carry: B53.sh commit
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT -k 20 170 python3 -m rooftile check attention_options attention_qkvpacked rotary_attention segment_sum --device cuda --jobs 16 --stale --record --within 120 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250; tail -3 $OUT/c.txt | cut -c1-400; date +%T
timeout -s INT -k 20 90 python3 -m rooftile bench segment_sum --against torch,compile --stale --record --within 70 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/d.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
