# first call of the next session: what is due and wants no quack, embedding's gates, then Llama's step. carry: R63.sh sp0 liger.tar.xz commit; R63b.sh right behind it on the same machine. ~520 s
set -u
mkdir -p /tmp/lig /root/peers; cp .gpu/sp0 /root/peers/; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
keep() { tar czf $OUT/records.tgz records; date +%T; }
nvidia-smi -L | cut -c1-60; date +%T
ops="mlp layernorm dropout_add_norm add_layernorm embedding gemv bias_mask_scale_add swiglu geglu reglu gelu rope log_softmax cross_entropy attention_options attention_varlen"
timeout -s INT -k 20 300 python3 -m rooftile bench $ops --against torch,compile,liger --stale --record --within 265 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-300; keep
timeout -s INT -k 20 60 python3 -m rooftile check embedding embedding_accumulate gemv attention_options transpose --device cuda --jobs 16 --stale --record --within 40 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250 | head -5; tail -2 $OUT/c.txt | cut -c1-400; keep
timeout -s INT -k 20 160 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; tail -4 $OUT/llama.log | cut -c1-200; keep
