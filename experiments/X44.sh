# carry: X44.sh commit sp0; first of two on one machine
set -u
nvidia-smi -L | cut -c1-30
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
mkdir -p /root/peers; cp .gpu/sp0 /root/peers/
timeout -s INT 300 python3 -m rooftile check attention attention_options attention_varlen attention_qkvpacked rotary_attention --device cuda --jobs 16 --record --stale --within 230 > $OUT/c.txt 2>&1; echo check rc $?; tail -1 $OUT/c.txt | cut -c1-200
date +%T; tar czf $OUT/records.tgz records
