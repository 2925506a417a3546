"""y = gelu(x W1ᵀ + b1) W2ᵀ + b2 of the vendor's products and gelu's own kernels. Floor: 2 M F (K + N) operations, twice that for the gradients.

bytes     in 16 bits and for each element of [M, F]: pre written and read, h written and read: 8. Backward dh written and read, pre read, dpre
          written and read by two products and a sum, h read by one: 16. gelu's own passes are 4 and 6 of these: at GPT-2's shape,
          1e8 elements, 96 and 144 us at the H200's 4.2 TB/s, beside products of 0.44 and 0.88 ms at 700 TFLOP/s.
kept      pre for gelu's gradient, h for the second weight's
"""

import torch

import rooftile.ops.gelu.api
import rooftile.ops.glu.api  # noqa: F401  both fill OPS
from rooftile.core.kernel import OPS, Kernel
from rooftile.ops._shared.column_sum import column_sum
from rooftile.ops._shared.launch import off_gpu
from rooftile.ops._shared.products import product
from rooftile.ops.gemm.reference import flat


def forward(x, weight1, bias1, weight2, bias2, activated):
    """(y, kept, h); activated(rows, weight, bias) -> (kept, h) is the first layer."""
    kept, h = activated(flat(x), low(x, weight1), low(x, bias1))
    out = product(h, low(x, weight2).t(), low(x, bias2))
    return tuple(t.view(*x.shape[:-1], t.shape[1]) for t in (out, kept, h))


def backward(dout, x, weight1, bias1, weight2, bias2, kept, h, sloped):
    """The five gradients; sloped(g, weight, kept, bias) -> (dpre, dbias) is the second layer's way back, through gelu, and the first's bias's."""
    g = flat(dout)
    dpre, dbias1 = sloped(g, low(x, weight2), flat(kept), bias1)
    dx = product(dpre, low(x, weight1)).view(x.shape)
    # of a float32 weight the gradient, summed in float32, is not rounded
    dweight1, dweight2 = product(dpre.t(), flat(x), dtype=weight1.dtype), product(g.t(), flat(h), dtype=weight2.dtype)
    return dx, dweight1, dbias1, dweight2, dbias(g, bias2)


def low(x, parameter):
    """In x's dtype, for the products."""
    return None if parameter is None else parameter.to(x.dtype)


def dbias(g, bias):
    """The gradient of a bias that was added to every row, of none an empty one."""
    if bias is None:
        return g.new_empty(0)
    if bias.dtype == g.dtype and off_gpu(g) is None:
        return column_sum(g)
    return g.sum(0, dtype=torch.float32).to(bias.dtype)


def mlp(x, weight1, bias1, weight2, bias2, approximate, keep):
    def activated(rows, weight, bias):
        pre = product(rows, weight.t(), bias)
        h = OPS["gelu"].launch(pre, approximate)
        return pre if keep == "pre" else OPS["gelu_backward"].launch(torch.ones_like(pre), pre, approximate), h

    return forward(x, weight1, bias1, weight2, bias2, activated)


def mlp_backward(dout, x, weight1, bias1, weight2, bias2, kept, h, approximate, keep):
    def sloped(g, weight, kept, bias):
        dh = product(g, weight)
        dpre = OPS["gelu_backward"].launch(dh, kept, approximate) if keep == "pre" else dh.mul_(kept)
        return dpre, dbias(dpre, bias)

    return backward(dout, x, weight1, bias1, weight2, bias2, kept, h, sloped)


def gated_forward(x, weight1, weight2, activation, residual, gated, save=True):
    """(y, pre); gated(rows, weight, activation, save) -> (pre, h) is the first layer."""
    pre, h = gated(flat(x), low(x, weight1), activation, save)
    out = product(h, low(x, weight2).t(), add=None if residual is None else flat(residual).contiguous())
    return tuple(t if t is None else t.view(*x.shape[:-1], t.shape[1]) for t in (out, pre))


def gated_backward(dout, x, weight1, weight2, pre, activation, sloped):
    """The three gradients; sloped(g, weight, pre, activation) -> (dpre, h) is the second layer's way back, through the gate, and what the gate made."""
    g = flat(dout)
    dpre, h = sloped(g, low(x, weight2), flat(pre), activation)
    dx = product(dpre, low(x, weight1)).view(x.shape)
    return dx, product(dpre.t(), flat(x), dtype=weight1.dtype), product(g.t(), h, dtype=weight2.dtype)


GATES = {"silu": ("swiglu",), "gelu": ("geglu", "none"), "gelu_tanh": ("geglu", "tanh"), "relu": ("reglu",)}


def _gated(rows, weight, activation, save):
    name, *form = GATES[activation]
    pre = product(rows, weight.t())
    return pre, OPS[name].launch(pre, None, *form)


def _gate_sloped(g, weight, pre, activation):
    name, *form = GATES[activation]
    h = product(g, weight)  # dh, over which the gate writes h
    dpre, _ = OPS[f"{name}_again"].launch(h, pre, None, *form)
    return dpre, h


def gated_mlp(x, weight1, weight2, activation, residual=None):
    return gated_forward(x, weight1, weight2, activation, residual, _gated)


def gated_mlp_backward(dout, x, weight1, weight2, pre, activation):
    return gated_backward(dout, x, weight1, weight2, pre, activation, _gate_sloped)


def _refuse(call):
    where = call["x"].device
    return f"its products are PyTorch's, which computes nothing on {where}" if where.type == "meta" else None


FORWARD = (Kernel("composed", mlp, "product, gelu, product: the vendor's and gelu's own kernel", _refuse),)
BACKWARD = (Kernel("composed", mlp_backward, "four products, gelu's own gradient, two sums of columns", _refuse),)
GATED_FORWARD = (Kernel("composed", gated_mlp, "product, gate, product: the vendor's and the gate's own kernel", _refuse),)
GATED_BACKWARD = (Kernel("composed", gated_mlp_backward, "four products, the gate's own gradient, which makes h again", _refuse),)
