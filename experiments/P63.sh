set -u
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
keep() { tar czf $OUT/records.tgz records; date +%T; }
nvidia-smi -L | cut -c1-60; date +%T
(timeout -s INT -k 5 45 python3 .gpu/users63/lab.py > $OUT/users63.txt 2>&1; echo "rc $?" >> $OUT/users63.txt); cut -c1-200 $OUT/users63.txt | tail -25; date +%T
ops="adamw adamw_measured cross_entropy mlp"
timeout -s INT -k 20 150 python3 -m rooftile bench $ops --against torch,compile,liger --stale --record --within 120 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-300; keep
timeout -s INT -k 20 60 python3 -m rooftile check $ops softmax attention attention_options attention_varlen transpose --device cuda --jobs 16 --stale --record --within 35 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250 | head -5; tail -2 $OUT/c.txt | cut -c1-400; keep
