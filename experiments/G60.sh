set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
keep() { tar czf $OUT/records.tgz records; date +%T; }
nvidia-smi -L | cut -c1-60; nvidia-smi --query-gpu=power.limit,clocks.sm,temperature.gpu,power.draw --format=csv,noheader; date +%T
timeout -s INT -k 20 45 python3 .gpu/lab65.py 18 > $OUT/lab65.txt 2>&1; echo lab65 $?; cut -c1-400 $OUT/lab65.txt; date +%T
ops="embedding embedding_accumulate scan layernorm"
timeout -s INT -k 20 200 python3 -m rooftile bench $ops --against torch,compile,liger --stale --record --within 170 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-200; keep
timeout -s INT -k 20 80 python3 -m rooftile check $ops --device cuda --jobs 16 --stale --record --within 60 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250 | head; tail -2 $OUT/c.txt | cut -c1-400; keep
