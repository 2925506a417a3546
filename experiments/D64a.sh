# on two GPUs, a folder of records each: GPU 0 benches, GPU 1 trains and benches. carry: D64a.sh D64b.sh sp0 liger.tar.xz commit; D64b.sh right behind it on the same machine
set -u
mkdir -p /tmp/lig /root/peers /tmp/r0 /tmp/r1; cp .gpu/sp0 /root/peers/; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
cp -r records /tmp/r0/; cp -r records /tmp/r1/
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
keep() { tar czf $OUT/records$1.tgz -C /tmp/r$1 records; date +%T; }
nvidia-smi -L | cut -c1-60; date +%T; nproc
bench() { g=$1; n=$2; w=$3; shift 3; CUDA_VISIBLE_DEVICES=$g timeout -s INT -k 20 $((w+55)) python3 -m rooftile bench "$@" --against torch,compile,liger --record --folder /tmp/r$g/records --within $w --jobs 14 > $OUT/$n.log 2>&1; echo "$n rc $?"; grep -i "^left\|^seconds" $OUT/$n.log | cut -c1-600; keep $g; }
( bench 0 a 405 add_layernorm dropout_add_norm bias_mask_scale_add geglu reglu swiglu geglu_again reglu_again swiglu_again gelu residual_add residual_add_overwrite scan masked_softmax log_softmax embedding embedding_accumulate gemv --stale ) > /tmp/g0.txt 2>&1 &
( for m in llama-1.2b:liger gpt2-124m:torch,compile; do
    CUDA_VISIBLE_DEVICES=1 timeout -s INT -k 10 165 python3 -m rooftile bench train.${m%%:*} --against ${m##*:} --record --folder /tmp/r1/records > $OUT/${m%%:*}.log 2>&1; echo "${m%%:*} rc $?"; tail -4 $OUT/${m%%:*}.log | cut -c1-160; keep 1
  done
  bench 1 b 165 mlp gated_mlp quantize quantize_affine dequantize rmsnorm_quantize add_rmsnorm_quantize swiglu_quantize cross_entropy_ahead cross_entropy_overwrite concat_kv concat_kv_e4m3 attention_varlen rotary_attention attention_decode attention_decode_e4m3 segment_sum adamw grad_norm linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen --stale ) > /tmp/g1.txt 2>&1 &
wait; cat /tmp/g0.txt /tmp/g1.txt
