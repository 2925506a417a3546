import torch
from torch import Tensor

from rooftile.ops._shared.rotary import rotate, turns


def check_room(lengths: Tensor, room: int, more: int, table: Tensor | None) -> None:
    """A CPU can afford to look. On a GPU what does not fit is not written, and a key whose position is outside the table is NaN."""
    if lengths.device.type == "cpu" and lengths.numel():
        low, high = (int(i) for i in lengths.aminmax())
        if low < 0 or high + more > room:
            raise ValueError(f"concat_kv: a sequence has {low if low < 0 else high} keys, {more} more do not fit a cache of {room}")
        if table is not None and table.shape[1] and more and high + more > len(table):
            raise ValueError(f"concat_kv: a position is {high + more - 1}, but the table has {len(table)} rows")


def concat_kv(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, cos: Tensor | None, sin: Tensor | None,
              interleaved: bool) -> None:  # fmt: skip
    check_room(lengths, k_cache.shape[1], k.shape[1], cos)
    place = lengths.long()[:, None] + torch.arange(k.shape[1], device=k.device)
    if cos is not None and sin is not None:
        k = rotate(k, turns(k, cos, sin, place), interleaved)
    fits = (lengths[:, None] >= 0) & (place < k_cache.shape[1])
    for cache, new in ((k_cache, k), (v_cache, v)):
        for b in range(len(lengths)):
            cache[b, place[b, fits[b]]] = new[b, fits[b]].to(cache.dtype)
