"""The vendor's product, which reads the residual where its tile ends. Floor: 2 M N K operations, twice that for the gradients.

bytes     an addition of its own reads what the product has just written, and the residual, and writes again: 6 M N of 16 bits. Here the residual is
          read, 2 M N, while the next tile is multiplied.
"""

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.products import product
from rooftile.ops.gemm.reference import flat


def linear_add(x, weight, residual):
    return product(flat(x), weight.to(x.dtype).t(), add=flat(residual).contiguous()).view(residual.shape)


def linear_add_backward(dout, x, weight):
    g = flat(dout)
    # of a float32 weight the gradient, summed in float32, is not rounded
    return product(g, weight.to(x.dtype)).view(x.shape), product(g.t(), flat(x), dtype=weight.dtype)


def _refuse(call):
    where = call["x"].device
    return f"its products are PyTorch's, which computes nothing on {where}" if where.type == "meta" else None


FORWARD = (Kernel("vendor", linear_add, "one product of cuBLASLt's or PyTorch's, which adds where a tile ends", _refuse),)
BACKWARD = (Kernel("vendor", linear_add_backward, "two products", _refuse),)
