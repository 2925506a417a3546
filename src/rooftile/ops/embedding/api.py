from typing import Any

import torch
from torch import Tensor

from rooftile.core.kernel import Op, ranked
from rooftile.ops.embedding import cuda_kernels, triton_kernels
from rooftile.ops.embedding.spec import SPEC

_embedding = Op(
    SPEC,
    *triton_kernels.FORWARD,
    *cuda_kernels.FORWARD,
    backward=ranked((*triton_kernels.BACKWARD, *cuda_kernels.BACKWARD), "cuda.v4_shares", "cuda.v5_dealt", "cuda.v3_ranges"),
)


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
    return _embedding(indices, weight, -1 if padding_idx is None else _row(padding_idx, weight.shape[0]))


def _row(padding_idx: int, rows: int) -> int:
    if not -rows <= padding_idx < rows:
        raise ValueError(f"embedding: padding_idx is {padding_idx}, but the weight has {rows} rows")
    return padding_idx % rows


class Embedding(torch.nn.Module):
    """`embedding` as a module, with the state dict of torch.nn.Embedding. Renormalised, frequency-scaled and sparse tables are not supported."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: float | None = None,
                 scale_grad_by_freq: bool = False, sparse: bool = False, device: Any = None, dtype: Any = None):  # fmt: skip
        super().__init__()
        for name, value in {"max_norm": max_norm, "scale_grad_by_freq": scale_grad_by_freq, "sparse": sparse}.items():
            if value not in (None, False):
                raise ValueError(f"Embedding: {name}={value} is not supported: use torch.nn.Embedding")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else _row(padding_idx, num_embeddings)
        self.weight = torch.nn.Parameter(torch.empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        torch.nn.init.normal_(self.weight)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.weight[self.padding_idx].zero_()

    def forward(self, indices: Tensor) -> Tensor:
        return embedding(indices, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
