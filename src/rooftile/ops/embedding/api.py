import functools
import sys
from typing import Any

import torch
from torch import Tensor

from rooftile.core.bind import parameter, tensors
from rooftile.core.kernel import Op, ranked
from rooftile.core.register import once, traced, transforms
from rooftile.ops.embedding import bulk_kernels, composed_kernels, cuda_kernels, triton_kernels
from rooftile.ops.embedding.spec import ACCUMULATE, SPEC

_embedding = Op(
    SPEC,
    *triton_kernels.FORWARD,
    *bulk_kernels.FORWARD,
    *cuda_kernels.FORWARD,
    backward=ranked((*triton_kernels.BACKWARD, *cuda_kernels.BACKWARD), "cuda.v4_shares", "cuda.v5_dealt", "cuda.v3_ranges"),
)
_accumulate = Op(ACCUMULATE, *cuda_kernels.ACCUMULATE, *composed_kernels.ACCUMULATE)


def embedding(indices: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """out[i] = weight[indices[i]].

    Args:
        indices: [...] int64, each between 0 and V - 1.
        weight: [V, N] float32, bfloat16 or float16.
        padding_idx: a row of the weight that gets no gradient; negative counts from the end.

    Returns:
        [..., N] in the weight's dtype. dweight is added in float32 in the order of the tokens, without atomics: two runs give the
        same bits, also where one token is most of the batch.

    Raises:
        ValueError: an index outside the weight, with both numbers (on a CPU; on a GPU, where looking would mean waiting, the row
        is NaN and its gradient goes nowhere); padding_idx outside the weight; another dtype.

    Example:
        >>> embedding(torch.tensor([1, 0]), torch.tensor([[1.0], [2.0]]))
        tensor([[2.],
                [1.]])
    """
    if padding_idx is None or not isinstance(weight, Tensor) or weight.dim() != 2:  # of what is no table the operator will tell what it is
        return _embedding(indices, weight, -1)
    return _embedding(indices, weight, _row(padding_idx, weight.shape[0]))


def _holders(t: Tensor) -> tuple[int, int, int]:
    """How many hold t in Python, in C++, and its memory."""
    return sys.getrefcount(t), t._use_count(), torch._C._storage_Use_Count(t.untyped_storage()._cdata)


@functools.cache
def _of_a_gradient() -> tuple[int, int, int]:
    """`_holders` of a gradient that nobody but autograd holds, in a function's backward; that differs between versions of PyTorch. Not asked when this is
    imported: PyTorch's engine wakes up the devices, and a process that has done so cannot be forked."""
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.clone(), x.view_as(x)

        @staticmethod
        @once("tied_embedding")
        def backward(ctx: Any, drows: Tensor, dhead: Tensor) -> None:
            seen.append(_holders(dhead))

    with torch.enable_grad():
        rows, head = Look.apply(torch.zeros(2, device="cpu", requires_grad=True))
        ((rows * 2).sum() + (head * 2).sum()).backward()
    return seen[0]


class _Tied(torch.autograd.Function):
    """The weight's gradient as a head, and the rows' added to it where it lies; or to a copy, if somebody else may see it."""

    @staticmethod
    def forward(ctx: Any, indices: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(indices, weight)
        ctx.set_materialize_grads(False)
        ctx.alone = _of_a_gradient()
        return _embedding.launch(indices, weight, -1), weight.view_as(weight)

    @staticmethod
    @once("tied_embedding")
    def backward(ctx: Any, drows: Tensor | None, dhead: Tensor | None) -> tuple[None, Tensor | None]:
        indices, weight = ctx.saved_tensors
        if drows is None:
            return None, dhead
        if dhead is None:
            return None, _embedding.backward.launch(drows, indices, weight, -1)
        if transforms((drows, dhead)):  # who holds a batch of gradients, nobody can say
            return None, dhead + _embedding.backward.launch(drows, indices, weight, -1)
        alone = _holders(dhead) == ctx.alone and dhead.is_contiguous()  # or somebody else may see it written
        dweight = dhead if alone else dhead.clone(memory_format=torch.contiguous_format)
        _accumulate.launch(drows, indices, dweight, -1)
        return None, dweight


def tied_embedding(indices: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """`embedding`, and the weight once more for the head of a model that ties the two: their gradients are one tensor, and are made as one.

    Args:
        indices, weight: as in `embedding`.

    Returns:
        (embedding(indices, weight), the weight). The second is for the head: to the gradient that it gets are added, in place, the rows that were
        asked for. To add up two gradients, of which one is mostly zeros, is to move the weight five times.

    Raises:
        ValueError: as in `embedding`.

    Source: Press and Wolf, Using the Output Embedding to Improve Language Models, 2017.

    Example:
        >>> rows, head = tied_embedding(torch.tensor([1]), torch.tensor([[1.0], [2.0]]))
        >>> rows, head
        (tensor([[2.]]), tensor([[1.],
                [2.]]))
    """
    tensors("tied_embedding", weight=weight)
    wanted = torch.is_grad_enabled() and weight.requires_grad
    if not wanted or traced((indices, weight)):
        return embedding(indices, weight), weight
    return _Tied.apply(indices, weight)


def _row(padding_idx: int, rows: int) -> int:
    parameter("embedding", "padding_idx", padding_idx, int)
    if not -rows <= padding_idx < rows:
        raise ValueError(f"embedding: padding_idx is {padding_idx}, but the weight has {rows} rows")
    return padding_idx % rows


class Embedding(torch.nn.Embedding):
    """`embedding` as a module: arguments, initialisation and state dict are those of torch.nn.Embedding. Renormalised, frequency-scaled and sparse
    tables are not supported."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: float | None = None,
                 norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False, _weight: Tensor | None = None,
                 _freeze: bool = False, device: torch.device | str | int | None = None, dtype: torch.dtype | None = None):  # fmt: skip
        for name, value, asked in (
            ("max_norm", max_norm, max_norm is not None),
            ("scale_grad_by_freq", scale_grad_by_freq, scale_grad_by_freq),
            ("sparse", sparse, sparse),
        ):
            if asked:
                raise ValueError(f"Embedding: {name}={value} is not supported: use torch.nn.Embedding")
        padding_idx = None if padding_idx is None else _row(padding_idx, num_embeddings)
        super().__init__(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight, _freeze, device,
                         dtype)  # fmt: skip

    def forward(self, indices: Tensor) -> Tensor:
        return embedding(indices, self.weight, self.padding_idx)
