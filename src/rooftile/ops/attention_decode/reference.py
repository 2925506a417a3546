import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from rooftile.ops._shared.reference import wide


def check_lengths(lengths: Tensor, block_table: Tensor | None, pages: int, page: int, first: Tensor) -> None:
    """A CPU can afford to look. On a GPU a sequence with such a length or page is NaN."""
    if lengths.device.type != "cpu" or not lengths.numel():
        return
    room = page if block_table is None else block_table.shape[1] * page
    low, high = (int(i) for i in lengths.aminmax())
    if low < 0 or high > room:
        raise ValueError(f"attention_decode: a sequence has {low if low < 0 else high} keys, its cache has room for {room}")
    if block_table is None:
        return
    begin = torch.arange(block_table.shape[1]) * page
    used = block_table[(begin < lengths[:, None]) & (begin + page > first[:, None])]
    wrong = used[(used < 0) | (used >= pages)]
    if wrong.numel():
        raise ValueError(f"attention_decode: a block table names page {int(wrong[0])} of a cache of {pages} pages")


def _first(lengths: Tensor, t: int, window: int) -> Tensor:
    """[B]: the first key that any query sees. What lies before it may be another's by now."""
    return (lengths - t - window + 1).clamp(min=0) if window else torch.zeros_like(lengths)


def _keys(cache: Tensor, first: Tensor, lengths: Tensor, block_table: Tensor | None, to: torch.dtype) -> Tensor:
    """[B S G D]: each sequence's keys in a row, zeros behind the last and before the first; NaN where a page that is used does not exist."""
    x = cache.to(to)
    if block_table is not None:
        known = (block_table >= 0) & (block_table < len(cache))
        x = x[torch.where(known, block_table, 0).long()]
        x = torch.where(known[:, :, None, None, None], x, math.nan).flatten(1, 2)
    return torch.where(_there(x.shape[1], first, lengths), x, 0.0)


def _there(s: int, first: Tensor, lengths: Tensor) -> Tensor:
    """[B S 1 1]: keys that any query sees."""
    i = torch.arange(s, device=lengths.device)
    return ((i >= first[:, None]) & (i < lengths[:, None]))[:, :, None, None]


def _seen(lengths: Tensor, t: int, s: int, window: int) -> Tensor:
    """[B T S]: query t stands at the place lengths - T + t; it sees the keys up to there, of them the last `window`."""
    i = (lengths[:, None] - t + torch.arange(t, device=lengths.device))[:, :, None]
    j = torch.arange(s, device=lengths.device)
    return (j <= i) & (j > i - window) if window else j <= i


def _decode(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, sinks: Tensor | None, scale: float, window: int, softcap: float,
            room: int) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of k and v [B S G D] in the dtype that arithmetic is done in."""
    grouped = wide(q).unflatten(2, (k.shape[2], -1))
    scores = torch.einsum("btgrd,bsgd->bgrts", grouped, k).flatten(1, 2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~_seen(lengths, q.shape[1], k.shape[1], window)[:, None], -math.inf)
    lse = torch.logsumexp(scores, -1) if k.shape[1] else scores.new_full(scores.shape[:-1], -math.inf)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.to(lse.dtype)[:, None])
    p = torch.exp(scores - torch.where(lse == -math.inf, 0.0, lse)[..., None])
    out = torch.einsum("bgrts,bsgd->btgrd", p.unflatten(1, (k.shape[2], -1)), v).flatten(2, 3)
    wrong = (lengths < 0) | (lengths > room)
    return out.masked_fill(wrong[:, None, None, None], math.nan).to(q.dtype), lse.masked_fill(wrong[:, None, None], math.nan)


def attention_decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, block_table: Tensor | None = None,
                     sinks: Tensor | None = None, scale: float = 1.0, window: int = 0, softcap: float = 0.0) -> tuple[Tensor, Tensor]:  # fmt: skip
    first = _first(lengths, q.shape[1], window)
    check_lengths(lengths, block_table, *k_cache.shape[:2], first)
    k, v = (_keys(x, first, lengths, block_table, wide(q).dtype) for x in (k_cache, v_cache))
    return _decode(q, k, v, lengths, sinks, scale, window, softcap, k.shape[1])


def attention_decode_e4m3(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, k_scale: Tensor | None = None,
                          v_scale: Tensor | None = None, block_table: Tensor | None = None, sinks: Tensor | None = None,
                          scale: float = 1.0, window: int = 0, softcap: float = 0.0) -> tuple[Tensor, Tensor]:  # fmt: skip
    first = _first(lengths, q.shape[1], window)
    check_lengths(lengths, block_table, *k_cache.shape[:2], first)
    k, v = (_keys(x.view(torch.float8_e4m3fn), first, lengths, block_table, wide(q).dtype) for x in (k_cache, v_cache))
    k, v = (x if s is None else x * s.to(x.dtype)[:, None] for x, s in ((k, k_scale), (v, v_scale)))
    return _decode(q, k, v, lengths, sinks, scale, window, softcap, k.shape[1])


_full: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _is_full(lengths: Tensor, room: int) -> bool:
    """Looked up once for a tensor, so that the peer is timed without waiting."""
    if lengths not in _full:
        _full[lengths] = bool((lengths == room).all())
    return _full[lengths]


def torch_decode(q, k_cache, v_cache, lengths, block_table=None, sinks=None, scale=1.0, window=0, softcap=0.0):
    """PyTorch's own: its attention where the caches are full; ragged lengths, windows, cap and sinks are written out."""
    k, v = k_cache, v_cache
    if block_table is not None:
        k, v = (x[block_table.clamp(0, len(x) - 1).long()].flatten(1, 2) for x in (k, v))
    t, s = q.shape[1], k.shape[1]
    if not (window or softcap) and sinks is None and t <= s and _is_full(lengths, s):
        from torch.nn.attention.bias import causal_lower_right  # brings PyTorch's compiler with it

        views = (x.transpose(1, 2) for x in (q, k, v))
        mask = causal_lower_right(t, s) if t > 1 else None
        return F.scaled_dot_product_attention(*views, attn_mask=mask, scale=scale, enable_gqa=True).transpose(1, 2)
    there = _there(s, _first(lengths, t, window), lengths)
    k, v = (torch.where(there, x, 0.0).repeat_interleave(q.shape[2] // x.shape[2], 2).transpose(1, 2) for x in (k, v))
    scores = q.transpose(1, 2) @ k.transpose(2, 3) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~_seen(lengths, t, s, window)[:, None], -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(q.dtype)[:, None, None].expand(*scores.shape[:3], 1)], -1)
    p = torch.softmax(scores.float(), -1).nan_to_num(0.0).to(q.dtype)[..., :s]
    return (p @ v).transpose(1, 2)


def torch_decode_e4m3(q, k_cache, v_cache, lengths, k_scale=None, v_scale=None, block_table=None, **rest):
    k, v = (x.view(torch.float8_e4m3fn).float() for x in (k_cache, v_cache))
    k, v = ((x if s is None else x * s[:, None]).to(q.dtype) for x, s in ((k, k_scale), (v, v_scale)))
    return torch_decode(q, k, v, lengths, block_table, **rest)
