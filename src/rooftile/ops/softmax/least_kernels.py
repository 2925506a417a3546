"""Softmax of a few rows in CUDA C++: two waits for memory, one for the row and one for the code. Floor: a launch."""

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared import least
from rooftile.ops._shared.cuda_rows import even
from rooftile.ops._shared.launch import dense_like, rows

V11 = Source.beside(__file__, "v11_least.cu")


def softmax(x, *, config):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    vecs, block = least.shape(x, n, config)
    launch(V11, f"softmax<{CTYPE[x.dtype]}, {vecs}, {block}>", m, block, out, x, n * x.itemsize // 16, stride)
    return out


FORWARD = (
    Kernel("cuda.v11_least", softmax, "few rows: a block a row, in little code", lambda call: even(call) or least.wide(call), least.LEAST, least.pick,
           sources=(V11,), declines=least.many),
)  # fmt: skip
