import torch
from torch import Tensor

from rooftile.ops._shared.reference import wide


def check_offsets(offsets: Tensor, rows: int) -> None:
    """A CPU can afford to look. A GPU would have to wait for the answer: there a segment that is none becomes NaN."""
    if offsets.device.type == "cpu" and offsets.numel():
        low, high = (int(i) for i in offsets.aminmax())
        if low < 0 or high > rows:
            raise ValueError(f"segment_sum: an offset is {low if low < 0 else high}, but x has {rows} rows")
        falls = (offsets.diff() < 0).nonzero()
        if falls.numel():
            e = int(falls[0])
            raise ValueError(f"segment_sum: segment {e} ends at {int(offsets[e + 1])}, before it begins at {int(offsets[e])}")


def _segment_of(offsets: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Of each row the segment, and whether it has one."""
    row = torch.arange(rows, dtype=offsets.dtype, device=offsets.device)
    e = torch.searchsorted(offsets.contiguous(), row, right=True) - 1
    inside = (e >= 0) & (e < offsets.numel() - 1)
    return torch.where(inside, e, 0), inside


def segment_sum(x: Tensor, offsets: Tensor) -> Tensor:
    check_offsets(offsets, x.shape[0])
    if offsets.numel() == 1:
        return x[:0].clone()
    out = torch.zeros(offsets.numel() - 1, x.shape[1], dtype=wide(x).dtype, device=x.device)
    e, inside = _segment_of(offsets, x.shape[0])
    counted = torch.where(inside[:, None], wide(x), 0)
    # in one order: on a GPU accumulating index_put_ sorts and index_add_ uses atomics, on a CPU with several threads it is the other way round
    if x.is_cuda:
        out.index_put_((e,), counted, accumulate=True)
    else:
        out.index_add_(0, e, counted)
    begin, end = offsets[:-1], offsets[1:]
    right = (begin >= 0) & (begin <= end) & (end <= x.shape[0])
    return torch.where(right[:, None], out, torch.nan).to(x.dtype)


def segment_sum_backward(dout: Tensor, x: Tensor, offsets: Tensor) -> Tensor:
    if not dout.numel():
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    e, inside = _segment_of(offsets, x.shape[0])
    return torch.where(inside[:, None], dout[e], 0).to(x.dtype)
