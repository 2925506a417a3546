"""Our own product for Hopper in CUDA C++ (_shared/cuda/product_v1_hopper.cu), of factors as they lie: a gradient's are transposed by nobody."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.column_sum import column_sum
from rooftile.ops._shared.hopper_products import CONFIGS, LIMITS, V1, cannot, product, too_few
from rooftile.ops._shared.launch import off_gpu
from rooftile.ops.gemm.reference import flat


def gemm(a, b, bias=None, *, config):
    return product(flat(a), b, bias, config=config).view(*a.shape[:-1], b.shape[1])


def linear(x, weight, bias=None, *, config):
    return gemm(x, weight.t(), bias, config=config)


def gemm_backward(dout, a, b, bias, *, config):
    g = flat(dout)
    return product(g, b.t(), config=config).view(a.shape), product(flat(a).t(), g, config=config), _dbias(g, bias)


def linear_backward(dout, x, weight, bias, *, config):
    g = flat(dout)
    return product(g, weight, config=config).view(x.shape), product(g.t(), flat(x), config=config), _dbias(g, bias)


def _dbias(g, bias):
    if bias is None:
        return g.new_empty(0)
    return column_sum(g) if off_gpu(g) is None else g.sum(0, dtype=torch.float32).to(g.dtype)  # simulated, Triton is not there


def _kernel(run, idea, products):
    """products(**call): the factors of each of its products, and the bias where one has it."""

    def refuse(call):
        return next((why for factors in products(**call) if (why := cannot(*factors)) is not None), None)

    def declines(call):
        sizes = [(left.shape[0], right.shape[1]) for left, right, *_ in products(**call)]
        return next((why for m, n in sizes if (why := too_few(next(iter(call.values())), m, n)) is not None), None)

    return Kernel("cuda.v1_hopper", run, idea, refuse, CONFIGS, limits=LIMITS, architectures=(90,), sources=(V1,), declines=declines)


FORWARD, BACKWARD = (
    "a tile leaves by the copy engine beside the products of the next",
    "the same, of factors as they lie: along their sums or across them",
)
GEMM = _kernel(gemm, FORWARD, lambda a, b, bias: [(flat(a), b, bias)])
LINEAR = _kernel(linear, FORWARD, lambda x, weight, bias: [(flat(x), weight.t(), bias)])
GEMM_BACKWARD = _kernel(gemm_backward, BACKWARD, lambda dout, a, b, bias: [(flat(dout), b.t()), (flat(a).t(), flat(dout))])
LINEAR_BACKWARD = _kernel(linear_backward, BACKWARD, lambda dout, x, weight, bias: [(flat(dout), weight), (flat(dout).t(), flat(x))])
