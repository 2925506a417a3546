set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit)
[ -d /tmp/site/quack ] || (mkdir -p /tmp/site; cat /root/peers/sitepart0 .gpu/sitepart1 | xz -dc -T0 | tar -C /tmp/site -xf -)
export PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
timeout 300 python3 .gpu/experiments/forward.py torch,compile,quack 260 ${*:-rmsnorm softmax layernorm vector_add gelu reduce_sum transpose scan gemv} > $OUT/fwd.log 2> $OUT/fwd.err; cat $OUT/fwd.log | cut -c1-200; tail -3 $OUT/fwd.err | cut -c1-300
tar czf $OUT/records.tgz records/nvidia-h100-80gb-hbm3
