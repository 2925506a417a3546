import torch
from torch import Tensor

from rooftile.core.bind import tensors
from rooftile.core.kernel import Op
from rooftile.core.register import follows
from rooftile.ops.linear_cross_entropy import chunked_kernels as chunked
from rooftile.ops.linear_cross_entropy import triton_kernels
from rooftile.ops.linear_cross_entropy.chunked_kernels import all_at_once
from rooftile.ops.linear_cross_entropy.spec import AHEAD, FROZEN, SPEC

_linear_cross_entropy = Op(SPEC, *chunked.FORWARD, backward=chunked.BACKWARD)
_ahead = Op(AHEAD, *chunked.AHEAD, backward=(*triton_kernels.AHEAD_BACKWARD, *chunked.AHEAD_BACKWARD))
_frozen = Op(FROZEN, *chunked.FROZEN, backward=(*triton_kernels.FROZEN_BACKWARD, *chunked.FROZEN_BACKWARD))


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, *, ignore_index: int = -100,
                         label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float = 0.0, reduction: str = "mean",
                         chunk: int | None = None) -> Tensor:  # fmt: skip
    """`cross_entropy` of the logits x weightᵀ + bias, a chunk of rows at a time: the logits exist as a whole only where chunks would take
    more memory than they do.

    Args:
        x: [..., K] float32, bfloat16 or float16, any strides.
        weight: [V, K] of the same dtype or float32, which is rounded to x's dtype for the products; its gradient has its own dtype.
        target: [...] int64, the class of each row, or `ignore_index`: such a row's loss and gradient are 0.
        bias: [V] of the same dtype or float32.
        ignore_index, label_smoothing, z_loss, softcap, reduction: as in `cross_entropy`.
        chunk: rows whose logits exist at once; None takes what the shape asks for: 2048 or M K / V, the memory of x, and enough rows for full
            matrix products; K where that is more and a gradient is wanted, and up to 2 K rows of bfloat16 as a whole, for logits then weigh
            less than the sums of the weight's gradient that several chunks would need.

    Returns:
        float32, a scalar, or [...] for "none". Logits and their gradient are rounded to x's dtype, as two operators would hand them over; the
        gradients of weight and bias are added up in float32 over all rows and rounded once. Where a gradient is wanted of a mean or a sum, it
        is made in the forward pass, and the backward pass only scales it; for "none" the backward pass makes the logits again.

    Raises:
        ValueError: a target that is neither a class nor ignore_index (on a CPU; on a GPU the row's loss and gradient are NaN); shapes or
        dtypes that do not fit; an unknown reduction; a chunk below 1. The message has both numbers.

    Source: gradients ahead, chunk by chunk: Hsu et al., Liger Kernel, 2024. The loss: see `cross_entropy`.

    Example:
        >>> linear_cross_entropy(torch.ones(1, 3), torch.zeros(2, 3), torch.tensor([0]))
        tensor(0.6931)
    """
    tensors("linear_cross_entropy", {"bias": bias}, x=x, weight=weight, target=target)
    if x.dim() == 0:
        raise ValueError("linear_cross_entropy: x has 0 axes, needs at least 1 [... K]")
    if target.shape != x.shape[:-1]:
        raise ValueError(f"linear_cross_entropy: leading shape is {list(target.shape)} in target, but {list(x.shape[:-1])} in x")
    op = _linear_cross_entropy
    if torch.is_grad_enabled() and reduction != "none":
        trained = follows(weight) or (bias is not None and follows(bias))
        op = _ahead if trained else _frozen if follows(x) else op
    flat = x if x.dim() == 2 else x.reshape(target.numel(), x.shape[-1])
    sums = ("bfloat16" if all_at_once(flat, weight, chunk) else "float32",) if op is _ahead else ()
    loss = op(flat, weight, target.reshape(-1), bias, ignore_index, label_smoothing, z_loss, softcap, reduction, chunk, *sums)[0]
    return loss.view(target.shape) if reduction == "none" else loss


class LinearCrossEntropyLoss(torch.nn.Linear):
    """A head and its loss: torch.nn.Linear's parameters and state dict, `linear_cross_entropy` of (x, target)."""

    def __init__(self, in_features: int, num_classes: int, bias: bool = False, device: torch.device | str | int | None = None,
                 dtype: torch.dtype | None = None, *, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
                 softcap: float = 0.0, reduction: str = "mean", chunk: int | None = None):  # fmt: skip
        _linear_cross_entropy.takes(ignore_index=ignore_index, label_smoothing=label_smoothing, z_loss=z_loss, softcap=softcap,
                                    reduction=reduction, chunk=chunk)  # fmt: skip
        super().__init__(in_features, num_classes, bias, device, dtype)
        self.ignore_index, self.label_smoothing, self.z_loss = ignore_index, label_smoothing, z_loss
        self.softcap, self.reduction, self.chunk = softcap, reduction, chunk

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return linear_cross_entropy(x, self.weight, target, self.bias, ignore_index=self.ignore_index, label_smoothing=self.label_smoothing,
                                    z_loss=self.z_loss, softcap=self.softcap, reduction=self.reduction, chunk=self.chunk)  # fmt: skip

    def extra_repr(self) -> str:
        said = f"{super().extra_repr()}, ignore_index={self.ignore_index}, label_smoothing={self.label_smoothing}"
        return f"{said}, z_loss={self.z_loss}, softcap={self.softcap}, reduction={self.reduction!r}, chunk={self.chunk}"
