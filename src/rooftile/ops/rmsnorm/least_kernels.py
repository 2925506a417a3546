"""RMSNorm of a few rows in CUDA C++: two waits for memory, one for the row with its weight and one for the code. Floor: a launch."""

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from rooftile.ops._shared import least
from rooftile.ops._shared.cuda_norms import at, even, said, statistics, types
from rooftile.ops._shared.launch import rows
from rooftile.ops._shared.norms import RMS, outputs

V10 = Source.beside(__file__, "v10_least.cu")


def rmsnorm(x, weight, eps, offset, *, config, save=True):
    out, _, _, rstd = outputs(x, None, RMS, save)
    x, m, n, stride = rows(x)
    w = at(weight, x)
    vecs, block = least.shape(x, n, config)
    instance = f"rmsnorm<{types(x, w)}, {said(weight is not None)}, {vecs}, {block}>"
    launch(V10, instance, m, block, out, *statistics(x, rstd), x, w, n * x.itemsize // 16, stride, 1 / n, eps, offset)
    return out, rstd


FORWARD = (
    Kernel("cuda.v10_least", rmsnorm, "few rows: the weight asked for with the row, in little code", lambda call: even(call) or least.wide(call),
           least.LEAST, least.pick, sources=(V10,), declines=least.many),
)  # fmt: skip
