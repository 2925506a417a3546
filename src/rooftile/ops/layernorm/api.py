from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from rooftile.core.bind import tensors
from rooftile.core.kernel import Op, ranked
from rooftile.core.register import follows, once, traced
from rooftile.ops._shared import sum_pipeline
from rooftile.ops.layernorm import cuda_add_kernels, cuda_kernels, least_kernels
from rooftile.ops.layernorm.spec import ADD_SPEC, SPEC
from rooftile.ops.layernorm.triton_kernels import ADD_BACKWARD, ADD_FORWARD, BACKWARD, FORWARD

_layernorm = Op(
    SPEC,
    *least_kernels.FORWARD,
    *ranked((*FORWARD, *cuda_kernels.FORWARD), "cuda.v5_rows", "cuda.v4_register_row", "cuda.v9_ahead", "cuda.v6_pipeline"),
    backward=ranked((*BACKWARD, *cuda_kernels.BACKWARD), "cuda.v8_exchange", "cuda.v6_pipeline", "triton"),
)
_add_layernorm = Op(
    ADD_SPEC,
    *ADD_FORWARD,
    *cuda_add_kernels.FORWARD,
    backward=ranked((*ADD_BACKWARD, sum_pipeline.ADD_LAYERNORM, *cuda_add_kernels.BACKWARD), "cuda.v3_pipeline", "triton"),
)


def layernorm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """out = (x - mean x) / sqrt(var x + eps) * weight + bias over the last axis.

    Args:
        x: [..., N] float32, bfloat16 or float16, any strides.
        weight, bias: [N] in x's dtype or float32; either may be absent.
        eps: added to the variance.

    Returns:
        A tensor of x's shape and dtype. Statistics and sums are float32, the variance is that of x - mean. dweight and dbias
        come in the parameters' own dtype, added in one fixed order: two runs on one device give the same bits.

    Raises:
        ValueError: N differs between x and a parameter, or a dtype is another; the message has both.

    Source: Ba, Kiros and Hinton, Layer Normalization, 2016.

    Example:
        >>> layernorm(torch.tensor([[1.0, 3.0]]), eps=0.0)
        tensor([[-1.,  1.]])
    """
    return _layernorm(x, weight, bias, eps)[0]


def add_layernorm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    x_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """sum = x + x_bias + residual, out = layernorm(sum, weight, bias, eps), in one pass over the rows.

    Args:
        x, residual: [..., N] of one shape, any strides; no broadcasting. x is float32, bfloat16 or float16, residual the same or
            float32: a stream that many branches are added to loses less in float32.
        weight, bias: [N] in x's dtype or float32; either may be absent.
        eps: added to the variance.
        x_bias: [N] in x's dtype or float32, what x still lacks: the bias of the product that made it, whose gradient is then summed here, from
            the rows of dx as they are written, and not by reading them again. It is added before the sum is rounded: of two narrow numbers the sum is
            often a tie, which the smallest bias breaks to its side.

    Returns:
        (out, sum), out of x's dtype and sum of residual's, both differentiable. The sum is rounded once, and out is the layernorm
        of the rounded sum. x and residual have one gradient, layernorm's dx + dsum, in the sum's dtype; the sum of its rows is x_bias's.

    Raises:
        ValueError: x and residual differ in shape or dtype, N differs between x and a parameter, or a dtype is another; the
            message has both.

    Source: Ba, Kiros and Hinton, Layer Normalization, 2016; the residual connection is He et al., Deep Residual Learning, 2015.

    Example:
        >>> add_layernorm(torch.tensor([[1.0, 1.0]]), torch.tensor([[0.0, 2.0]]), eps=0.0)
        (tensor([[-1.,  1.]]), tensor([[1., 3.]]))
    """
    return _add_layernorm(x, residual, weight, bias, eps, x_bias)[:2]


class _Stream(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, x_bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        out, mean, rstd = _layernorm.launch(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.x_bias = None if x_bias is None else x_bias.dtype
        ctx.set_materialize_grads(False)
        return out, x

    @staticmethod
    @once("stream_layernorm")
    def backward(ctx: Any, dout: Tensor | None, dx: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        x_bias = None if ctx.x_bias is None else x.new_empty(x.shape[-1], dtype=ctx.x_bias)  # a gradient asks it for its dtype alone
        dweight = dbias = dx_bias = None
        if dout is None:
            if dx is not None and x_bias is not None:
                dx_bias = dx[None].flatten(0, -2).sum(0, dtype=torch.float32).to(ctx.x_bias)
        elif dx is None and x_bias is None:
            dx, dweight, dbias = _layernorm.backward.launch(dout, x, weight, bias, mean, rstd)
        else:
            dx = torch.zeros_like(x) if dx is None else dx
            dx, dweight, dbias, dx_bias = _add_layernorm.backward.launch(dout, dx, x, weight, bias, mean, rstd, x_bias)
        made = dx, dweight, dbias, None, dx_bias
        return tuple(g if needed else None for g, needed in zip(made, ctx.needs_input_grad))


def stream_layernorm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    x_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`layernorm` of a residual stream, and the stream, which goes on to the addition behind the branch: so it has two gradients, and the kernel
    that writes the norm's adds the other as it does.

    Args:
        x, weight, bias, eps: as in `layernorm`.
        x_bias: [N] in x's dtype or float32, the bias of the layer that x was last added to by, which has been added there, cut off from autograd:
            `stream_layernorm(linear_add(a, w, stream, b.detach()), x_bias=b)`. It is not added again. Its gradient is the sum of the rows of x's,
            and is summed here as they are written, not by reading them again.

    Returns:
        (layernorm(x, weight, bias, eps), x).

    Raises:
        ValueError: as in `layernorm`, and where x_bias is another length or dtype.

    Example:
        >>> stream_layernorm(torch.tensor([[1.0, 3.0]]), eps=0.0)
        (tensor([[-1.,  1.]]), tensor([[1., 3.]]))
    """
    tensors("stream_layernorm", {"weight": weight, "bias": bias, "x_bias": x_bias}, x=x)
    if x_bias is not None and (x_bias.shape != x.shape[-1:] or x_bias.dtype not in (x.dtype, torch.float32)):
        have, want = (f"{list(s)} {str(t).removeprefix('torch.')}" for s, t in ((x_bias.shape, x_bias.dtype), (x.shape[-1:], x.dtype)))
        raise ValueError(f"stream_layernorm: x_bias is {have}, of this x it must be {want} or float32")
    if x_bias is not None and not follows(x_bias):
        x_bias = None
    wanted = x_bias is not None or any(t is not None and t.requires_grad for t in (x, weight, bias))
    if not (wanted and torch.is_grad_enabled()):
        return layernorm(x, weight, bias, eps), x
    if traced((x, weight, bias, x_bias)):
        x = x if x_bias is None else x + (x_bias - x_bias.detach()).to(x.dtype)  # zeros, of which autograd makes the sum of rows
        return layernorm(x, weight, bias, eps), x
    return _Stream.apply(x, weight, bias, eps, x_bias)


class LayerNorm(torch.nn.Module):
    """`layernorm` as a module, with the arguments and the state dict of torch.nn.LayerNorm; over the last axis only."""

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
                 device: torch.device | str | int | None = None, dtype: torch.dtype | None = None):  # fmt: skip
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, Integral) else tuple(normalized_shape)
        if len(shape) != 1:
            raise ValueError(f"LayerNorm: normalized_shape is {list(shape)}, only the last axis can be normalised: give one number")
        _layernorm.takes(eps=eps)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        weight = torch.nn.Parameter(torch.ones(shape, device=device, dtype=dtype)) if elementwise_affine else None
        self.register_parameter("weight", weight)
        self.register_parameter("bias", torch.nn.Parameter(torch.zeros_like(weight)) if weight is not None and bias else None)

    def reset_parameters(self) -> None:
        if self.weight is not None:
            torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor) and x.shape[-1:] != self.normalized_shape:
            raise ValueError(f"LayerNorm: N is {self.normalized_shape[0]} in the module, but x is {list(x.shape)}")
        return layernorm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        said = f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        return f"{said}, bias={self.bias is not None}"
