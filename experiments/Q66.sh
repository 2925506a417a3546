set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
mkdir -p /root/peers /tmp/r0; [ -f .gpu/sp0 ] && cp .gpu/sp0 /root/peers/; cp -r records /tmp/r0/
timeout -s INT -k 10 150 python3 -m rooftile check attention_options attention_varlen attention --device cuda --jobs 15 --stale --record --folder /tmp/r0/records --within 120 > $OUT/c.txt 2>&1; echo "check rc $?"; grep -a "^failed" $OUT/c.txt | cut -c1-250 | head -20; tail -3 $OUT/c.txt | cut -c1-300; date +%T
timeout -s INT -k 10 75 python3 -m rooftile bench attention_options --case G8- --record --folder /tmp/r0/records --within 60 --jobs 15 > $OUT/b.txt 2>&1; grep -a "attention_options" $OUT/b.txt | cut -c1-190; date +%T
timeout -s INT -k 10 75 python3 -m rooftile bench attention_options --case softcap=50 --record --folder /tmp/r0/records --within 60 --jobs 15 > $OUT/b2.txt 2>&1; grep -a "attention_options" $OUT/b2.txt | cut -c1-190; date +%T
tar czf $OUT/records0.tgz -C /tmp/r0 records
