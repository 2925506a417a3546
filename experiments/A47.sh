# session 47, first call. carry: A47.sh commit sp0 liger.tar.xz cold47.py prof43.py. Then B45.sh (sp1 peers2.xz) on the same machine within 30 s.
set -u
mkdir -p /root/peers /tmp/lig; cp .gpu/sp0 /root/peers/; nvidia-smi -L | cut -c1-30
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
timeout 110 python3 .gpu/cold47.py > $OUT/cold.txt 2>&1; echo cold rc $?; date +%T
timeout 100 python3 .gpu/prof43.py llama $OUT/llama.tl > $OUT/llama.txt 2>&1; echo prof rc $?; head -2 $OUT/llama.txt | cut -c1-200; date +%T
timeout -s INT 60 python3 -m rooftile check attention_decode --device cuda --jobs 16 --stale --record --within 40 > $OUT/c.txt 2>&1; echo check rc $?; tail -2 $OUT/c.txt | cut -c1-200; date +%T
timeout -s INT 100 python3 -m rooftile bench attention_decode attention_decode_e4m3 --against torch,compile --stale --record --within 75 --jobs 15 > $OUT/d.log 2>&1; echo decode rc $?; grep -i "^left\|^seconds" $OUT/d.log | cut -c1-120
date +%T; tar czf $OUT/records.tgz records
