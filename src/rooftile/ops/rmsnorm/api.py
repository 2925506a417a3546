from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from rooftile.core.bind import tensors
from rooftile.core.kernel import Op, ranked
from rooftile.core.register import once, traced
from rooftile.ops._shared import sum_pipeline
from rooftile.ops.rmsnorm import cuda_add_kernels, cuda_kernels, least_kernels
from rooftile.ops.rmsnorm.spec import ADD_SPEC, SPEC
from rooftile.ops.rmsnorm.triton_kernels import ADD_BACKWARD, ADD_FORWARD, BACKWARD, FORWARD

_rmsnorm = Op(
    SPEC,
    *least_kernels.FORWARD,
    *ranked((*FORWARD, *cuda_kernels.FORWARD), "cuda.v5_rows", "cuda.v4_register_row", "cuda.v9_ahead", "cuda.v6_pipeline"),
    backward=ranked((*BACKWARD, *cuda_kernels.BACKWARD), "cuda.v8_exchange", "cuda.v6_pipeline", "triton"),
)
_add_rmsnorm = Op(
    ADD_SPEC,
    *ADD_FORWARD,
    *cuda_add_kernels.FORWARD,
    backward=ranked((*ADD_BACKWARD, sum_pipeline.ADD_RMSNORM, *cuda_add_kernels.BACKWARD), "cuda.v3_pipeline", "triton"),
)


def rmsnorm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, offset: float = 0.0) -> Tensor:
    """out = x / sqrt(mean x^2 + eps) * (offset + weight) over the last axis.

    Args:
        x: [..., N] float32, bfloat16 or float16, any strides.
        weight: [N] in x's dtype or float32; may be absent: then the row is multiplied by nothing, whatever the offset.
        eps: added to the mean square.
        offset: added to the weight, in float32; 1 where weights are stored as what they differ from 1 by, as Gemma's are.

    Returns:
        A tensor of x's shape and dtype. Sums are float32 and the result is rounded once, after the weight. dweight comes in the weight's
        own dtype, added in float32 in one fixed order: two runs on one device give the same bits.

    Raises:
        ValueError: N differs between x and weight, or a dtype is another; the message has both.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.

    Example:
        >>> rmsnorm(torch.tensor([[1.0, 7.0]]), eps=0.0)
        tensor([[0.2000, 1.4000]])
    """
    return _rmsnorm(x, weight, eps, offset)[0]


def add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """sum = x + residual, out = rmsnorm(sum, weight, eps, offset), in one pass over the rows.

    Args:
        x, residual: [..., N] of one shape, any strides; no broadcasting. x is float32, bfloat16 or float16, residual the same or
            float32: a stream that many branches are added to loses less in float32.
        weight: [N] in x's dtype or float32; may be absent: then the row is multiplied by nothing, whatever the offset.
        eps: added to the mean square.
        offset: added to the weight, in float32; 1 where weights are stored as what they differ from 1 by, as Gemma's are.

    Returns:
        (out, sum), out of x's dtype and sum of residual's, both differentiable. The sum is rounded once, and out is the rmsnorm of the
        rounded sum. x and residual have one gradient, rmsnorm's dx + dsum, in the sum's dtype.

    Raises:
        ValueError: x and residual differ in shape or dtype, N differs between x and weight, or a dtype is another; the message has both.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019; the residual connection is He et al., Deep Residual
        Learning, 2015.

    Example:
        >>> add_rmsnorm(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 4.0]]), eps=0.0)
        (tensor([[0.2000, 1.4000]]), tensor([[1., 7.]]))
    """
    return _add_rmsnorm(x, residual, weight, eps, offset)[:2]


class _Stream(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float, offset: float) -> tuple[Tensor, Tensor]:
        out, rstd = _rmsnorm.launch(x, weight, eps, offset)
        ctx.save_for_backward(x, weight, rstd)
        ctx.offset = offset
        ctx.set_materialize_grads(False)
        return out, x

    @staticmethod
    @once("stream_rmsnorm")
    def backward(ctx: Any, dout: Tensor | None, dx: Tensor | None) -> tuple[Tensor | None, ...]:
        if dout is None:
            return dx, None, None, None
        if dx is None:
            dx, dweight = _rmsnorm.backward.launch(dout, *ctx.saved_tensors, ctx.offset)
        else:
            dx, dweight = _add_rmsnorm.backward.launch(dout, dx, *ctx.saved_tensors, ctx.offset)
        return dx, dweight if ctx.needs_input_grad[1] else None, None, None


def stream_rmsnorm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """`rmsnorm` of a residual stream, and the stream, which goes on to the addition behind the branch: so it has two gradients, and the kernel
    that writes the norm's adds the other as it does.

    Args:
        x, weight, eps, offset: as in `rmsnorm`.

    Returns:
        (rmsnorm(x, weight, eps, offset), x).

    Raises:
        ValueError: as in `rmsnorm`.

    Example:
        >>> stream_rmsnorm(torch.tensor([[1.0, 7.0]]), eps=0.0)
        (tensor([[0.2000, 1.4000]]), tensor([[1., 7.]]))
    """
    tensors("stream_rmsnorm", {"weight": weight}, x=x)
    wanted = torch.is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad))
    if not wanted or traced((x, weight)):
        return rmsnorm(x, weight, eps, offset), x
    return _Stream.apply(x, weight, eps, offset)


class RMSNorm(torch.nn.Module):
    """`rmsnorm` as a module, with the arguments and the state dict of torch.nn.RMSNorm; over the last axis only. eps=None is
    float32's machine epsilon, in which sums are taken, whatever x's dtype: as there. `offset` is added to the weight, which then begins as 1 - offset."""

    def __init__(self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True,
                 device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *, offset: float = 0.0):  # fmt: skip
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, Integral) else tuple(normalized_shape)
        if len(shape) != 1:
            raise ValueError(f"RMSNorm: normalized_shape is {list(shape)}, only the last axis can be normalised: give one number")
        _rmsnorm.takes(**({} if eps is None else {"eps": eps}), offset=offset)
        self.normalized_shape, self.eps, self.elementwise_affine, self.offset = shape, eps, elementwise_affine, offset
        self.register_parameter(
            "weight", torch.nn.Parameter(torch.full(shape, 1.0 - offset, device=device, dtype=dtype)) if elementwise_affine else None
        )

    def reset_parameters(self) -> None:
        if self.weight is not None:
            torch.nn.init.constant_(self.weight, 1.0 - self.offset)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor) and x.shape[-1:] != self.normalized_shape:
            raise ValueError(f"RMSNorm: N is {self.normalized_shape[0]} in the module, but x is {list(x.shape)}")
        return rmsnorm(x, self.weight, torch.finfo(torch.float32).eps if self.eps is None else self.eps, self.offset)

    def extra_repr(self) -> str:
        said = f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        return f"{said}, offset={self.offset}" if self.offset else said
