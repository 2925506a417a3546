from typing import Any

import torch
from torch import Tensor

from rooftile.core.bind import flag
from rooftile.core.kernel import Op
from rooftile.core.register import once, traced, transforms
from rooftile.ops.cross_entropy import bulk_kernels, cluster_kernels, cuda_kernels, split_kernels, triton_kernels
from rooftile.ops.cross_entropy.passes import TWO_PASSES
from rooftile.ops.cross_entropy.spec import AHEAD, OVERWRITE, SPEC

_cross_entropy = Op(
    SPEC,
    *split_kernels.FORWARD,
    *triton_kernels.FORWARD,
    *bulk_kernels.FORWARD,
    *cuda_kernels.FORWARD,
    backward=(*triton_kernels.BACKWARD, *cuda_kernels.BACKWARD),
)
_overwrite = Op(OVERWRITE, *triton_kernels.OVERWRITE, *cuda_kernels.OVERWRITE)
_ahead = Op(AHEAD, *cluster_kernels.AHEAD, *cuda_kernels.AHEAD, TWO_PASSES, *triton_kernels.AHEAD)


class _Overwriting(torch.autograd.Function):
    """The gradient takes the logits' place. Saving them checks their version; writing them raises it, so whoever else saved them
    for a backward that is still to come, this one included, gets PyTorch's error instead of a wrong gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, *parameters: Any) -> Tensor:
        loss, *saved = _cross_entropy.launch(logits, target, *parameters)
        ctx.save_for_backward(logits, target, *saved)
        ctx.parameters = parameters[:-1]  # the reduction is in the saved count
        return loss

    @staticmethod
    @once("cross_entropy")
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        logits, *saved = ctx.saved_tensors
        if transforms((dloss,)):  # there is room for one gradient, and this is a batch of them
            return _cross_entropy.backward.launch(dloss, logits, *saved, *ctx.parameters), *[None] * (len(ctx.parameters) + 2)
        dlogits = logits.detach()
        _overwrite.launch(dloss, dlogits, *saved, *ctx.parameters)
        torch.autograd.graph.increment_version(logits)
        return dlogits, *[None] * (len(ctx.parameters) + 2)


def cross_entropy(logits: Tensor, target: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
                  softcap: float = 0.0, reduction: str = "mean", inplace_backward: bool = False) -> Tensor:  # fmt: skip
    """loss_i = lse_i - (1 - s) x_i,target_i - s/V sum_j x_ij + z lse_i^2, lse_i = log sum_j exp(x_ij), reduced over the rows that count;
    with a soft cap c the logits are x = c tanh(logits / c).

    Args:
        logits: [M, V] float32, bfloat16 or float16, any strides.
        target: [M] int64, the class of each row, or `ignore_index`: such a row is not read, its loss and gradient are 0.
        label_smoothing: s, between 0 and 1.
        z_loss: z, which keeps the sum of exponentials near 1; 0 is none.
        softcap: c; 0 is none.
        reduction: "mean" over the rows that count (NaN if none does, as PyTorch has it), "sum", or "none".
        inplace_backward: the gradient is written over the logits, which saves their size in memory. Nothing may read them after
            the backward: PyTorch raises if another operator saved them or the backward runs twice, but plain Python reads see the
            gradient. Eager only: under torch.compile the gradient gets memory of its own, and so it does where the logits are no
            rows side by side (transposed, expanded), or are a parameter themselves, or a view of one, and where hooks keep what is saved
            (activation checkpointing, save_on_cpu), of which PyTorch does not look whether it was written.

    Returns:
        float32, a scalar, or [M] for "none". Exponentials and sums are float32; a loss near 0 is right to its last bits, for the
        target's own term is kept out of the sum it would drown.

    Raises:
        ValueError: a target that is neither a class nor ignore_index, with both numbers (on a CPU; on a GPU, where looking would
        mean waiting, the row's loss and gradient are NaN); shapes or dtypes that do not fit; an unknown reduction.

    Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; label smoothing: Szegedy et al., 2016;
    z-loss: Chowdhery et al., PaLM, 2022; soft cap: Gemma 2, 2024.

    Example:
        >>> cross_entropy(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.6931)
    """
    flag("cross_entropy", "inplace_backward", inplace_backward)
    if inplace_backward and not traced((logits, target)) and _may_overwrite(logits):
        return _Overwriting.apply(logits, target, ignore_index, label_smoothing, z_loss, softcap, reduction)
    return _cross_entropy(logits, target, ignore_index, label_smoothing, z_loss, softcap, reduction)[0]


def _may_overwrite(logits: Tensor) -> bool:
    rows_apart = isinstance(logits, Tensor) and logits.dim() == 2 and logits.stride(1) == 1 and logits.stride(0) >= logits.shape[1]
    hooked = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    return rows_apart and logits.requires_grad and torch.is_grad_enabled() and not _of_a_leaf(logits) and not hooked


def _of_a_leaf(t: Tensor) -> bool:
    """Whether it lies where a leaf does, which keeps its values."""
    return t.is_leaf or (t._base is not None and t._base.is_leaf)


class CrossEntropyLoss(torch.nn.Module):
    """`cross_entropy` as a module, with the arguments of torch.nn.CrossEntropyLoss; class weights are not supported."""

    def __init__(self, weight: Tensor | None = None, size_average: bool | None = None, ignore_index: int = -100, reduce: bool | None = None,
                 reduction: str = "mean", label_smoothing: float = 0.0, *, z_loss: float = 0.0, softcap: float = 0.0,
                 inplace_backward: bool = False):  # fmt: skip
        super().__init__()
        if weight is not None:
            given = f"has {weight.numel()} classes" if isinstance(weight, Tensor) else f"is {weight!r}"
            raise ValueError(f"CrossEntropyLoss: weight {given}, but class weights are not supported: use torch.nn.CrossEntropyLoss")
        if size_average is not None or reduce is not None:
            raise ValueError("CrossEntropyLoss: size_average and reduce are PyTorch's old words: say reduction='mean', 'sum' or 'none'")
        flag("cross_entropy", "inplace_backward", inplace_backward)
        _cross_entropy.takes(
            ignore_index=ignore_index, label_smoothing=label_smoothing, z_loss=z_loss, softcap=softcap, reduction=reduction
        )
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing
        self.z_loss, self.softcap, self.inplace_backward = z_loss, softcap, inplace_backward

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        if isinstance(target, Tensor) and target.is_floating_point():
            raise ValueError(
                f"CrossEntropyLoss: target is {target.dtype}: class probabilities are not supported, give class numbers in int64"
            )
        return cross_entropy(logits, target, ignore_index=self.ignore_index, label_smoothing=self.label_smoothing, z_loss=self.z_loss,
                             softcap=self.softcap, reduction=self.reduction, inplace_backward=self.inplace_backward)  # fmt: skip

    def extra_repr(self) -> str:
        said = f"ignore_index={self.ignore_index}, reduction={self.reduction!r}, label_smoothing={self.label_smoothing}"
        return f"{said}, z_loss={self.z_loss}, softcap={self.softcap}, inplace_backward={self.inplace_backward}"
