set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
keep() { tar czf $OUT/records.tgz records; date +%T; }
nvidia-smi -L | cut -c1-60; date +%T
timeout -s INT -k 20 90 python3 .gpu/lab64.py 35 > $OUT/lab64.txt 2>&1; echo lab64 $?; cut -c1-600 $OUT/lab64.txt; date +%T
timeout -s INT -k 20 60 python3 .gpu/lab63.py 3 > $OUT/lab63.txt 2>&1; echo lab63 $?; grep "ward\|ahead 8" $OUT/lab63.txt | cut -c1-500; date +%T
ops="cross_entropy cross_entropy_overwrite cross_entropy_ahead"
timeout -s INT -k 20 130 python3 -m rooftile bench $ops --against torch,compile,liger --stale --record --within 100 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-200; keep
timeout -s INT -k 20 80 python3 -m rooftile check $ops --device cuda --jobs 16 --stale --record --within 60 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250 | head; tail -2 $OUT/c.txt | cut -c1-400; keep
