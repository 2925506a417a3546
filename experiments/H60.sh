set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
keep() { tar czf $OUT/records.tgz records; date +%T; }
nvidia-smi -L | cut -c1-60; date +%T
timeout -s INT -k 20 60 python3 -m rooftile bench dropout_add_norm add_layernorm add_rmsnorm embedding embedding_accumulate --against torch,compile,liger --stale --record --within 45 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-200; keep
python3 -m rooftile tune --from-records records > /dev/null 2>&1
timeout -s INT -k 10 130 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; tail -3 $OUT/llama.log | cut -c1-300; keep
timeout -s INT -k 10 150 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; tail -3 $OUT/gpt2.log | cut -c1-300; keep
timeout -s INT -k 20 30 python3 -m rooftile check embedding embedding_accumulate dropout_add_norm add_layernorm add_rmsnorm --device cuda --jobs 16 --stale --record --within 16 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250 | head -5; tail -2 $OUT/c.txt | cut -c1-400; keep
