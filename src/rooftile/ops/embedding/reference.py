import torch
import torch.nn.functional as F
from torch import Tensor

from rooftile.ops._shared.reference import wide


def check_indices(indices: Tensor, rows: int) -> None:
    """A CPU can afford to look. A GPU would have to wait for the answer: there the row becomes NaN."""
    if indices.device.type == "cpu" and indices.numel():
        low, high = (int(i) for i in indices.aminmax())
        if low < 0 or high >= rows:
            raise ValueError(f"embedding: an index is {low if low < 0 else high}, but the weight has {rows} rows")


def embedding(indices: Tensor, weight: Tensor, padding_idx: int) -> Tensor:
    check_indices(indices, weight.shape[0])
    padding = padding_idx if padding_idx >= 0 else None
    if indices.device.type == "cpu":
        return F.embedding(indices, weight, padding)
    inside = (indices >= 0) & (indices < weight.shape[0])
    return torch.where(inside[..., None], F.embedding(indices.clamp(0, weight.shape[0] - 1), weight, padding), torch.nan)


def embedding_backward(dout: Tensor, indices: Tensor, weight: Tensor, padding_idx: int) -> Tensor:
    return _summed(torch.zeros_like(weight, memory_format=torch.contiguous_format), dout, indices, padding_idx)


def embedding_accumulate(dout: Tensor, indices: Tensor, dweight: Tensor, padding_idx: int) -> None:
    dweight.copy_(_summed(dweight, dout, indices, padding_idx))


def _summed(old: Tensor, dout: Tensor, indices: Tensor, padding_idx: int) -> Tensor:
    """old, and to each row the gradients of the tokens that asked for it; rounded once."""
    flat, g = indices.reshape(-1), wide(dout).reshape(indices.numel(), old.shape[1])
    counts = (flat >= 0) & (flat < old.shape[0]) & (flat != padding_idx)
    g = torch.where(counts[:, None], g, 0)
    rows = torch.where(counts, flat, 0)
    # in one order: on a GPU accumulating index_put_ sorts and index_add_ uses atomics, on a CPU with several threads it is the other way round
    added = wide(old).index_put((rows,), g, accumulate=True) if old.is_cuda else wide(old).index_add(0, rows, g)
    return added.to(old.dtype)
