# gemv62's third lab; the bench and gates of whoever copies with a policy, but norms, gemv, adamw. carry: N62.sh gemv62 liger.tar.xz commit
set -u
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
keep() { tar czf $OUT/records.tgz records; date +%T; }
nvidia-smi -L | cut -c1-60; date +%T
timeout -s INT -k 10 60 python3 .gpu/gemv62/lab3.py 30 > $OUT/gemv62c.txt 2>&1; date +%T
ops="segment_sum embedding embedding_accumulate scan rotary_attention attention_decode attention_decode_e4m3 cross_entropy log_softmax masked_softmax transpose rope rope_overwrite geglu geglu_again gelu reglu reglu_again swiglu swiglu_again residual_add residual_add_overwrite swiglu_quantize rmsnorm_quantize add_rmsnorm_quantize vector_add linear_cross_entropy_ahead linear_cross_entropy_frozen"
timeout -s INT -k 20 400 python3 -m rooftile bench $ops --against torch,compile,liger --stale --record --within 370 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-400; keep
timeout -s INT -k 20 80 python3 -m rooftile check $ops --device cuda --jobs 16 --stale --record --within 55 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250 | head -5; tail -2 $OUT/c.txt | cut -c1-400; keep
