# first call of the next session. carry: I61.sh lab66.py fw66 liger.tar.xz commit (and sp0, to go on with E60-like calls on the same machine). ~360 s
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
keep() { tar czf $OUT/records.tgz records; date +%T; }
nvidia-smi -L | cut -c1-60; date +%T
timeout -s INT -k 20 80 python3 .gpu/lab66.py 25 > $OUT/lab66.txt 2>&1; echo lab66 $?; cut -c1-500 $OUT/lab66.txt; date +%T
ops="embedding embedding_accumulate dropout_add_norm add_layernorm add_rmsnorm linear_cross_entropy_ahead linear_cross_entropy_frozen"
timeout -s INT -k 20 150 python3 -m rooftile bench $ops --against torch,compile,liger --stale --record --within 120 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-200; keep
timeout -s INT -k 20 60 python3 -m rooftile check $ops attention_options gemv --device cuda --jobs 16 --stale --record --within 40 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250 | head -5; tail -2 $OUT/c.txt | cut -c1-400; keep
python3 -m rooftile tune --from-records records > /dev/null 2>&1
timeout -s INT -k 10 150 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; tail -3 $OUT/gpt2.log | cut -c1-300; keep
