# behind C62.sh. carry: D62.sh sp1 peers2.xz liger.tar.xz commit
set -u
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site /tmp/lig; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
keep() { tar czf $OUT/records.tgz records; date +%T; }
date +%T
timeout -s INT -k 20 150 python3 -m rooftile bench rmsnorm softmax --against torch,compile,liger,quack --stale --record --within 125 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-400; keep
export PYTHONPATH=src:/tmp/lig
ops="attention_mask concat_kv concat_kv_e4m3 bias_mask_scale_add gemv grad_norm dropout_add_norm add_layernorm add_rmsnorm layernorm rmsnorm softmax cross_entropy embedding embedding_accumulate adamw adamw_measured attention_varlen transpose mlp"
timeout -s INT -k 20 75 python3 -m rooftile check $ops --device cuda --jobs 16 --stale --record --within 50 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250 | head -8; tail -2 $OUT/c.txt | cut -c1-400; keep
timeout -s INT -k 20 110 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; tail -4 $OUT/llama.log | cut -c1-200; keep
