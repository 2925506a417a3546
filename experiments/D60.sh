set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
mkdir -p /root/peers /tmp/lig; cp .gpu/sp0 /root/peers/; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
keep() { tar czf $OUT/records.tgz records; date +%T; }
nvidia-smi -L | cut -c1-60; date +%T
timeout -s INT -k 20 60 python3 .gpu/emb61/lab.py > $OUT/emb61.txt 2>&1; echo emb61 $?; cut -c1-1100 $OUT/emb61.txt; date +%T
ops="linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen"
timeout -s INT -k 20 110 python3 -m rooftile bench $ops --against torch,compile,liger --stale --record --within 80 --jobs 8 > $OUT/l.log 2>&1; echo lce rc $?; grep -i "^left\|^seconds" $OUT/l.log | cut -c1-200; keep
timeout -s INT -k 20 80 python3 -m rooftile check $ops attention --device cuda --jobs 16 --stale --record --within 60 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250 | head; tail -2 $OUT/c.txt | cut -c1-400; keep
