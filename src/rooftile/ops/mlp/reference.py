from torch import Tensor, cat

from rooftile.ops._shared.activation_reference import activate, slope
from rooftile.ops._shared.reference import wide
from rooftile.ops.gelu.reference import gelu, gelu_backward
from rooftile.ops.gemm.reference import flat, linear
from rooftile.ops.linear_add.reference import linear_add


def mlp(x: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None,
        approximate: str = "none", keep: str = "pre", residual: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """With what the gradient needs, in x's dtype as three operators would hand it over: what gelu was given, `pre`, or its `slope` there, and what it made."""
    pre = linear(x, *_low(x, weight1, bias1))
    h = gelu(pre, approximate)
    kept = pre if keep == "pre" else gelu_backward(pre.new_ones(()), pre, approximate)
    weight2, bias2 = _low(x, weight2, bias2)
    return linear(h, weight2, bias2) if residual is None else linear_add(h, weight2, residual, bias2), kept, h


def mlp_backward(dout: Tensor, x: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None, kept: Tensor, h: Tensor,
                 approximate: str = "none", keep: str = "pre") -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dh, dweight2, dbias2 = _gradients(dout, h, weight2, bias2)
    dpre = gelu_backward(dh, kept, approximate) if keep == "pre" else (wide(dh) * wide(kept)).to(dh.dtype)
    dx, dweight1, dbias1 = _gradients(dpre, x, weight1, bias1)
    return dx, dweight1, dbias1, dweight2, dbias2


def gated_mlp(
    x: Tensor, weight1: Tensor, weight2: Tensor, activation: str = "silu", residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """With what the gradient needs: gate and up side by side in x's dtype."""
    pre = linear(x, *_low(x, weight1, None))
    h, weight2 = _gated(pre, activation), _low(x, weight2, None)[0]
    return linear(h, weight2) if residual is None else linear_add(h, weight2, residual), pre


def gated_mlp_backward(dout: Tensor, x: Tensor, weight1: Tensor, weight2: Tensor, pre: Tensor,
                       activation: str = "silu") -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dh, dweight2, _ = _gradients(dout, _gated(pre, activation), weight2, None)
    gate, up = wide(pre).chunk(2, -1)
    dgate, dup = wide(dh) * up * slope(gate, activation), wide(dh) * activate(gate, activation)
    dx, dweight1, _ = _gradients(cat([dgate, dup], -1).to(x.dtype), x, weight1, None)
    return dx, dweight1, dweight2


def _gated(pre: Tensor, activation: str) -> Tensor:
    gate, up = wide(pre).chunk(2, -1)
    return (activate(gate, activation) * up).to(pre.dtype)


def _low(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """In x's dtype: float32 weights are rounded to it first."""
    return weight.to(x.dtype), None if bias is None else bias.to(x.dtype)


def _gradients(g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Of one layer: x's in x's dtype, those of weight and bias in their own."""
    dx = (wide(g) @ wide(weight.to(x.dtype))).to(x.dtype)
    rows = flat(wide(g))
    dweight = (rows.t() @ flat(wide(x))).to(weight.dtype)
    return dx, dweight, g.new_empty(0) if bias is None else rows.sum(0).to(bias.dtype)
