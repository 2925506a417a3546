test -f /root/peers/sp0 || { echo "another machine"; exit 9; }; cp .gpu/sp1 /root/peers/; set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT 90 python3 -m rooftile bench attention_decode --against torch,compile --record --within 80 --jobs 15 > $OUT/d.log 2>&1; echo rc $?
tar czf $OUT/records.tgz records
