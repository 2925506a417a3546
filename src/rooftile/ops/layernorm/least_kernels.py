"""LayerNorm of a few rows in CUDA C++: two waits for memory, one for the row with its parameters and one for the code. Floor: a launch."""

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from rooftile.ops._shared import least
from rooftile.ops._shared.cuda_norms import at, even, said, statistics, types
from rooftile.ops._shared.launch import rows
from rooftile.ops._shared.norms import LAYER, outputs

V10 = Source.beside(__file__, "v10_least.cu")


def layernorm(x, weight, bias, eps, *, config, save=True):
    out, _, mean, rstd = outputs(x, None, LAYER, save)
    x, m, n, stride = rows(x)
    w, b = at(weight, x), at(bias, x)
    vecs, block = least.shape(x, n, config)
    instance = f"layernorm<{types(x, w, b)}, {said(weight is not None, bias is not None)}, {vecs}, {block}>"
    launch(V10, instance, m, block, out, *statistics(x, mean, rstd), x, w, b, n * x.itemsize // 16, stride, 1 / n, eps)
    return out, mean, rstd


FORWARD = (
    Kernel("cuda.v10_least", layernorm, "few rows: weight and bias asked for with the row, in little code",
           lambda call: even(call) or least.wide(call), least.LEAST, least.pick, sources=(V10,), declines=least.many),
)  # fmt: skip
