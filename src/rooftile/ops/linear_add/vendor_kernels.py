"""The vendor's product, which reads the residual where its tile ends. Floor: 2 M N K operations, twice that for the gradients.

bytes     an addition of its own reads what the product has just written, and the residual, and writes again: 6 M N of 16 bits. Here the residual is
          read, 2 M N, while the next tile is multiplied. A bias is N numbers, which a tile's end reads as well.
"""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda import cublaslt
from rooftile.ops._shared.column_sum import column_sum
from rooftile.ops._shared.launch import off_gpu
from rooftile.ops._shared.products import product
from rooftile.ops._shared.reference import wide
from rooftile.ops.gemm.reference import flat


def linear_add(x, weight, residual, bias=None):
    left, right, residual = flat(x), weight.to(x.dtype).t(), residual.contiguous()
    if bias is None:
        return product(left, right, add=flat(residual)).view(residual.shape)
    return _biased(left, right, bias.to(x.dtype).contiguous(), flat(residual)).view(residual.shape)


def _biased(left, right, bias, residual):
    """left right + bias + residual. PyTorch has no product that adds two things: where cuBLASLt cannot, a float32 sum of both is what is added to."""
    out = torch.empty_like(residual)
    if cublaslt.cannot(out, left, right, bias, residual) is None:
        cublaslt.product(out, left, right, bias=bias, add=residual)
        return out
    made = wide(residual) + bias
    return product(left, right, out=made, add=made).to(left.dtype)


def linear_add_backward(dout, x, weight, bias):
    g = flat(dout)
    # of a float32 weight the gradient, summed in float32, is not rounded
    dweight = product(g.t(), flat(x), dtype=weight.dtype)
    dbias = _dbias(g, bias)  # finds in the L2 what the product read last, and the next product what this reads
    return product(g, weight.to(x.dtype)).view(x.shape), dweight, dbias


def _dbias(g, bias):
    if bias is None:
        return g.new_empty(0)
    return column_sum(g) if bias.dtype == g.dtype and off_gpu(g) is None else g.sum(0, dtype=torch.float32).to(bias.dtype)


def _refuse(call):
    where = call["x"].device
    return f"its products are PyTorch's, which computes nothing on {where}" if where.type == "meta" else None


FORWARD = (Kernel("vendor", linear_add, "one product of cuBLASLt's or PyTorch's, which adds where a tile ends", _refuse),)
BACKWARD = (Kernel("vendor", linear_add_backward, "two products, and of a bias a sum of columns", _refuse),)
