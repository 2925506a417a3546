set -u
sed -i 's#max(1, block // 64)#max(1, block // 32)#' src/rooftile/ops/glu/triton_kernels.py src/rooftile/ops/residual_add/triton_kernels.py
sed -i 's#min((max(256, most >> i) for i in range(3))#min((max(min(256, most), most >> i) for i in range(3))#' src/rooftile/ops/_shared/pointwise.py
PYTHONPATH=src timeout 400 python3 .gpu/small5.py 2>$OUT/err.log; tail -3 $OUT/err.log
