import torch
from torch import Tensor

from rooftile.ops._shared.reference import wide
from rooftile.ops._shared.rotary import rotate, turns

LARGEST = 448.0  # of e4m3


def check_room(lengths: Tensor, cache: Tensor, more: int, table: Tensor | None, block_table: Tensor | None) -> None:
    """A CPU can afford to look. On a GPU what does not fit, or has no page, is not written, and a key whose position is outside the table is NaN."""
    if lengths.device.type != "cpu" or not lengths.numel():
        return
    pages, page = cache.shape[:2]
    room, where = page, f"a cache of {page}"
    if block_table is not None:
        room, where = block_table.shape[1] * page, f"{block_table.shape[1]} pages of {page}"
    low, high = (int(i) for i in lengths.aminmax())
    if low < 0 or high + more > room:
        raise ValueError(f"concat_kv: a sequence has {low if low < 0 else high} keys, {more} more do not fit {where}")
    if table is not None and table.shape[1] and more and high + more > len(table):
        raise ValueError(f"concat_kv: a position is {high + more - 1}, but the table has {len(table)} rows")
    if block_table is not None:
        begin = torch.arange(block_table.shape[1]) * page
        used = block_table[(begin < lengths[:, None] + more) & (begin + page > lengths[:, None])] if more else block_table[:, :0]
        wrong = used[(used < 0) | (used >= pages)]
        if wrong.numel():
            raise ValueError(f"concat_kv: a block table names page {int(wrong[0])} of a cache of {pages} pages")


def _turned(k: Tensor, cos: Tensor | None, sin: Tensor | None, place: Tensor, interleaved: bool) -> Tensor:
    return k if cos is None or sin is None else rotate(k, turns(k, cos, sin, place), interleaved)


def _write(cache: Tensor, new: Tensor, lengths: Tensor, place: Tensor, block_table: Tensor | None) -> None:
    """What has a place in the cache, by its bytes: PyTorch copies few things in 8 bits."""
    page = cache.shape[1]
    if block_table is None:
        row, slot = torch.arange(len(lengths), device=place.device)[:, None].expand_as(place), place
        there = (lengths[:, None] >= 0) & (place < page)
    else:
        room = block_table.shape[1] * page
        there = (lengths[:, None] >= 0) & (place < room)
        pages = torch.nn.functional.pad(block_table, (0, 1), value=-1)  # the page of what has no room
        row, slot = pages.gather(1, torch.where(there, place, room) // page).long(), place % page
        there &= (row >= 0) & (row < len(cache))
    new = new.to(cache.dtype)
    cache, new = (x.view(torch.uint8) if x.itemsize == 1 else x for x in (cache, new))
    cache[row[there], slot[there]] = new[there]


def concat_kv(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, cos: Tensor | None, sin: Tensor | None,
              interleaved: bool, block_table: Tensor | None = None) -> None:  # fmt: skip
    check_room(lengths, k_cache, k.shape[1], cos, block_table)
    place = lengths.long()[:, None] + torch.arange(k.shape[1], device=k.device)
    for cache, new in ((k_cache, _turned(k, cos, sin, place, interleaved)), (v_cache, v)):
        _write(cache, new, lengths, place, block_table)


def concat_kv_e4m3(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, cos: Tensor | None, sin: Tensor | None,
                   interleaved: bool, block_table: Tensor | None = None, k_scale: Tensor | None = None,
                   v_scale: Tensor | None = None) -> None:  # fmt: skip
    """Rounded once, and as `quantize` rounds: rounded(clamp(x * fl32(1 / scale))); a NaN stays one."""
    check_room(lengths, k_cache, k.shape[1], cos, block_table)
    place = lengths.long()[:, None] + torch.arange(k.shape[1], device=k.device)
    turned = _turned(wide(k), cos, sin, place, interleaved)
    for cache, new, scale in ((k_cache, turned, k_scale), (v_cache, wide(v), v_scale)):
        new = new if scale is None else new * (1.0 / scale.to(new.dtype))[:, None]
        _write(cache, new.clamp(-LARGEST, LARGEST), lengths, place, block_table)
