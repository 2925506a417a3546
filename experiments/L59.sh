# second call, same machine. carry: L59.sh lab58.py order59.py at ce commit liger.tar.xz
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
keep() { tar czf $OUT/records.tgz records; date +%T; }
timeout -k 5 110 python3 .gpu/order59.py 5 > $OUT/order59.txt 2>&1; tail -32 $OUT/order59.txt | cut -c1-400; date +%T
timeout -s INT -k 20 170 python3 -m rooftile bench attention_decode attention_decode_e4m3 attention --against torch,compile --stale --record --within 145 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-200; keep
ops="linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen"
timeout -s INT -k 20 110 python3 -m rooftile bench $ops --against torch,compile,liger --stale --record --within 80 --jobs 8 > $OUT/l.log 2>&1; echo lce rc $?; grep -i "^left\|^seconds" $OUT/l.log | cut -c1-200; keep
timeout -s INT -k 20 80 python3 -m rooftile check $ops --device cuda --jobs 16 --stale --record --within 60 > $OUT/c.txt 2>&1; echo check rc $?; tail -2 $OUT/c.txt | cut -c1-400; keep
timeout -k 5 60 python3 .gpu/lab58.py 4 > $OUT/lab58.txt 2>&1; cut -c1-1500 $OUT/lab58.txt
for t in T4 T8; do timeout -s INT -k 20 40 python3 -m rooftile bench attention_decode --case _${t}_ --against torch,compile --record --within 25 --jobs 15 > $OUT/d$t.log 2>&1; echo $t rc $?; done; keep
