set -u
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
keep() { tar czf $OUT/records.tgz records; date +%T; }
nvidia-smi -L | cut -c1-60; date +%T
ops="segment_sum gemv bias_mask_scale_add dropout_add_norm add_layernorm add_rmsnorm layernorm embedding_accumulate embedding mlp"
timeout -s INT -k 20 235 python3 -m rooftile bench $ops --against torch,compile,liger --stale --record --within 200 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds\|wrong\|fail" $OUT/b.log | cut -c1-300 | head -20; keep
timeout -s INT -k 20 45 python3 -m rooftile check $ops --device cuda --jobs 16 --stale --record --within 28 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250 | head -5; tail -2 $OUT/c.txt | cut -c1-400; keep
timeout -s INT -k 20 110 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; tail -4 $OUT/llama.log | cut -c1-200; keep
timeout -s INT -k 10 115 python3 -m rooftile bench train.gpt2-124m --against compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; tail -3 $OUT/gpt2.log | cut -c1-300; keep
