# call B: peers' second part; decode anew as chosen. carry: B.sh commit sp1
set -u
cp .gpu/sp1 /root/peers/ || exit 9
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT 70 python3 -m rooftile bench attention_decode --against torch,compile --stale --record --within 60 --jobs 15 > $OUT/d.log 2>&1; echo rc $?
tar czf $OUT/records.tgz records
