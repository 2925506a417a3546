import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from rooftile.ops._shared.reference import wide

_CHUNK = 2**28  # scores held at once: 2 GiB in float64, so that T = 16384 has a truth to be compared with


def _grouped(x: Tensor, k: Tensor) -> Tensor:
    """[B T H D] -> [B T G H/G D]: query head h reads key head h / (H/G)."""
    g = k.shape[2]
    return x.unflatten(2, (g, x.shape[2] // g if g else 1))


def products(x: Tensor, y: Tensor) -> Tensor:
    """[B H T S]: every row of x [B T H D] times every row of its head in y [B S G D]."""
    return torch.einsum("btgrd,bsgd->bgrts", _grouped(x, y), y).flatten(1, 2)


def sums(p: Tensor, y: Tensor) -> Tensor:
    """[B T H D]: rows of y [B S G D] weighted by p [B H T S]."""
    g = y.shape[2]
    return torch.einsum("bgrts,bsgd->btgrd", p.unflatten(1, (g, p.shape[1] // g if g else 1)), y).flatten(2, 3)


def sums_of_heads(p: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """[B S G D] like y: rows of x [B T H D] weighted by p [B H T S], heads that share a key head added."""
    g = y.shape[2]
    return torch.einsum("bgrts,btgrd->bsgd", p.unflatten(1, (g, p.shape[1] // g if g else 1)), _grouped(x, y))


def _scores(q: Tensor, k: Tensor, causal: bool, scale: float) -> Iterator[tuple[slice, Tensor]]:
    """[B H rows S] scaled scores, -inf where query i may not see key j > i + S - T; a slice of the queries at a time."""
    (b, t, h, _), s = q.shape, k.shape[1]
    step = max(1, _CHUNK // max(1, b * h * s))
    for start in range(0, t, step):
        rows = slice(start, min(start + step, t))
        scores = products(q[:, rows], k) * scale
        if causal:
            i, j = torch.arange(rows.start, rows.stop, device=q.device)[:, None], torch.arange(s, device=q.device)
            scores = scores.masked_fill(j > i + s - t, -math.inf)
        yield rows, scores


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    wq, wk, wv = wide(q), wide(k), wide(v)
    out = wq.new_zeros(*q.shape[:3], v.shape[3])
    lse = wq.new_full((q.shape[0], q.shape[2], q.shape[1]), -math.inf)
    for rows, scores in _scores(wq, wk, causal, scale):
        lse[:, :, rows] = torch.logsumexp(scores, -1)
        p = torch.softmax(scores, -1).masked_fill(lse[:, :, rows, None] == -math.inf, 0.0)
        out[:, rows] = sums(p, wv)
    return out.to(q.dtype), lse


def attention_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    g, wq, wk, wv = wide(dout), wide(q), wide(k), wide(v)
    dq, dk, dv = wq.new_zeros(q.shape), wk.new_zeros(k.shape), wv.new_zeros(v.shape)
    delta = (g * wide(out)).sum(-1).transpose(1, 2)
    for rows, scores in _scores(wq, wk, causal, scale):
        p = torch.exp(scores - torch.where(lse == -math.inf, 0.0, lse)[:, :, rows, None])  # a row that sees nothing: exp(-inf) = 0
        ds = p * (products(g[:, rows], wv) - delta[:, :, rows, None]) * scale
        dv += sums_of_heads(p, g[:, rows], wv)
        dk += sums_of_heads(ds, wq[:, rows], wk)
        dq[:, rows] = sums(ds, wk)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    """PyTorch's own. Its is_causal is aligned to the first key, ours to the last: for T < S it gets a mask, for T > S fewer queries. Where values
    are not as wide as keys it leaves its fused kernels, so the narrower ones get columns of zeros."""
    t, s, d = q.shape[1], k.shape[1], max(q.shape[3], v.shape[3])
    if causal and t > s:
        return F.pad(sdpa(q[:, t - s :], k, v, causal, scale), (0, 0, 0, 0, t - s, 0))
    mask = torch.ones(t, s, dtype=torch.bool, device=q.device).tril(s - t) if causal and t < s else None
    views = ((x if x.shape[3] == d else F.pad(x, (0, d - x.shape[3]))).transpose(1, 2) for x in (q, k, v))
    grouped = q.shape[2] != k.shape[2]
    out = F.scaled_dot_product_attention(*views, attn_mask=mask, is_causal=causal and t == s, scale=scale, enable_gqa=grouped)
    return out[..., : v.shape[3]].transpose(1, 2)
