if nvidia-smi -L | grep -q H200; then bash .gpu/y2.sh; exit; fi
set -u
mkdir -p /tmp/site; cat /root/peers/sitepart0 .gpu/sitepart1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -; xz -dc .gpu/liger.tar.xz | tar -C /tmp/site -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
timeout -s INT 590 python3 -m rooftile bench layernorm rmsnorm add_layernorm add_rmsnorm dropout_add_norm geglu swiglu reglu geglu_again swiglu_again reglu_again residual_add residual_add_overwrite cross_entropy cross_entropy_ahead cross_entropy_overwrite embedding linear_add gemv concat_kv log_softmax masked_softmax segment_sum attention_decode attention_decode_e4m3 mlp gated_mlp linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen --against torch,compile,liger,quack --stale --record --within 560 --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -i left $OUT/b.log | tail -3 | cut -c1-500; tail -3 $OUT/b.log | cut -c1-300
tar czf $OUT/records.tgz records
