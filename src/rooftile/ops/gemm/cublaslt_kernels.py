"""The vendor's product by another algorithm than its heuristic's first, which is PyTorch's, where one is known to be faster.

ALGO is which of the heuristic's answers: the one that cublaslt.py prefers, or by its rank; `rooftile tune` asks for all of them. Backward each
of the two products has its own preference.
"""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda import cublaslt
from rooftile.ops._shared.column_sum import column_sum
from rooftile.ops._shared.cuda import misaligned
from rooftile.ops.gemm.reference import flat

VECTOR = 8  # elements of 16 bits in 16 bytes
PREFERRED = {"ALGO": cublaslt.PREFERRED}


def _product(left, right, bias=None, config=PREFERRED):
    left, right = (t if cublaslt.rows_or_columns(t) else t.contiguous() for t in (left, right))
    out = left.new_empty(left.shape[0], right.shape[1])
    cublaslt.product(out, left, right, bias=None if bias is None else bias.contiguous(), algorithm=config["ALGO"])
    return out


def gemm(a, b, bias=None, *, config):
    return _product(flat(a), b, bias, config).view(*a.shape[:-1], b.shape[1])


def linear(x, weight, bias=None, *, config):
    return gemm(x, weight.t(), bias, config=config)


def gemm_backward(dout, a, b, bias):
    g = flat(dout)
    return _product(g, b.t()).view(a.shape), _product(flat(a).t(), g), _dbias(g, bias)


def linear_backward(dout, x, weight, bias):
    g = flat(dout)
    return _product(g, weight).view(x.shape), _product(g.t(), flat(x)), _dbias(g, bias)


def _dbias(g, bias):
    return g.new_empty(0) if bias is None else column_sum(g)


def _refuse(call):
    for name, t in call.items():
        if t is None:
            continue
        if (why := cublaslt.off_gpu(t)) is not None:
            return why
        if t.dtype == torch.float32:
            return f"{name} is float32, cuBLASLt is asked for float16 and bfloat16"
        if t.numel() == 0:
            return f"there is nothing to compute: {name} is {list(t.shape)}"
        if t.shape[-1] % VECTOR:
            size = t.shape[-1]
            return f"{name} is {list(t.shape)}: rows of {size} elements do not begin at whole 16 bytes, {size} is no multiple of {VECTOR}"
    return misaligned(16, call)


def _declines(products):
    def declines(call):
        device, shapes = next(iter(call.values())).device, products(*call.values())
        if any(cublaslt.preferred(device, *shape) for shape in shapes):
            return None
        return f"the heuristic's first algorithm, PyTorch's, is as good as any known for M, N, K = {', '.join(map(str, shapes))}"

    return declines


def _forward(out_axis):
    """M, N, K of the product; out_axis: of the second factor."""
    return lambda x, weight, bias: [(x.shape[:-1].numel(), weight.shape[out_axis], x.shape[-1])]


def _backward(out_axis):
    def products(dout, x, weight, bias):
        m, n, k = x.shape[:-1].numel(), weight.shape[out_axis], x.shape[-1]
        return [(m, k, n), (k, n, m) if out_axis else (n, k, m)]

    return products


IDEA = "another of its heuristic's algorithms than the first, where one is known to be faster"


def _kernel(run, products, configs=()):
    return Kernel("cublaslt", run, IDEA, _refuse, configs, declines=_declines(products))


CONFIGS = tuple({"ALGO": i} for i in (cublaslt.PREFERRED, *range(cublaslt.OFFERED)))
GEMM, LINEAR = _kernel(gemm, _forward(1), CONFIGS), _kernel(linear, _forward(0), CONFIGS)
GEMM_BACKWARD, LINEAR_BACKWARD = _kernel(gemm_backward, _backward(1)), _kernel(linear_backward, _backward(0))
