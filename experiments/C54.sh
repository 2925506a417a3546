# session 54, third call, on `next`. carry: C54.sh commit sp0. Then D54.sh on the same machine.
set -u
mkdir -p /root/peers; cp .gpu/sp0 /root/peers/; nvidia-smi -L | cut -c1-60; date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT -k 20 330 python3 -m rooftile suites --record --within 270 --jobs 16 > $OUT/s.log 2>&1; echo suites rc $?; tail -14 $OUT/s.log | cut -c1-400; date +%T
tar czf $OUT/records.tgz records
timeout -s INT -k 20 200 python3 -m rooftile check attention attention_options attention_qkvpacked rotary_attention --device cuda --jobs 16 --stale --record --within 160 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250; tail -3 $OUT/c.txt | cut -c1-500; date +%T
tar czf $OUT/records.tgz records
