set -u
sed -i 's#max(1, block // 256)#max(1, block // 32)#' src/rooftile/ops/glu/triton_kernels.py src/rooftile/ops/residual_add/triton_kernels.py
PYTHONPATH=src timeout 300 python3 .gpu/small3.py 2>$OUT/err.log; tail -3 $OUT/err.log
