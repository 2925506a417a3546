"""What attention means, with every option, once: the plain operator, the one with options and the one of ragged sequences are all read off here."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rooftile.ops._shared.reference import wide

_CHUNK = 2**28  # scores held at once: 2 GiB in float64, so that T = 16384 has a truth to be compared with


class Rules(NamedTuple):
    """What becomes of q k. Query i sees the keys from i + S - T - left to i + S - T + right; -1: all on that side."""

    scale: float
    left: int = -1
    right: int = -1
    softcap: float = 0.0  # scores become softcap tanh(s / softcap)
    added: tuple[Tensor, ...] = ()  # to the scores, [B|1, H|1, T, S] each
    mask: Tensor | None = None  # [B, H, T, S], True where a key is seen
    sinks: Tensor | None = None  # [H]: a score that takes its share and gives nothing
    kept: Tensor | None = None  # [B, H, T, S]: the weights that dropout keeps, which are multiplied by `factor`
    factor: float = 1.0


def _products(x: Tensor, y: Tensor) -> Tensor:
    """[B H T S]: every row of x [B T H D] times every row of its head in y [B S G D]. Query head h reads key head h / (H / G)."""
    if x.shape[2] == y.shape[2]:
        return torch.einsum("bthd,bshd->bhts", x, y)
    return torch.einsum("btgrd,bsgd->bgrts", x.unflatten(2, (y.shape[2], -1)), y).flatten(1, 2)


def _sums(p: Tensor, y: Tensor) -> Tensor:
    """[B T H D]: rows of y [B S G D] weighted by p [B H T S]."""
    if p.shape[1] == y.shape[2]:
        return torch.einsum("bhts,bshd->bthd", p, y)
    return torch.einsum("bgrts,bsgd->btgrd", p.unflatten(1, (y.shape[2], -1)), y).flatten(2, 3)


def _sums_of_heads(p: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """[B S G D] like y: rows of x [B T H D] weighted by p [B H T S], heads that share a key head added."""
    g = y.shape[2]
    if p.shape[1] == g:
        return torch.einsum("bhts,bthd->bshd", p, x)
    return torch.einsum("bgrts,btgrd->bsgd", p.unflatten(1, (g, -1)), x.unflatten(2, (g, -1)))


def _hidden(rows: slice, t: int, s: int, rules: Rules, device: torch.device) -> Tensor | None:
    """[rows, S] or more: the keys that a query does not see."""
    hidden = None if rules.mask is None else ~rules.mask[:, :, rows]
    if rules.left < 0 and rules.right < 0:
        return hidden
    i, j = torch.arange(rows.start, rows.stop, device=device)[:, None] + s - t, torch.arange(s, device=device)
    for outside in ([j < i - rules.left] if rules.left >= 0 else []) + ([j > i + rules.right] if rules.right >= 0 else []):
        hidden = outside if hidden is None else hidden | outside
    return hidden


def _scores(q: Tensor, k: Tensor, rules: Rules) -> Iterator[tuple[slice, Tensor, Tensor | float]]:
    """A slice of the queries at a time: their scores [B H rows S], -inf for keys that are not seen, and the slope of the soft cap there."""
    (b, t, h, _), s = q.shape, k.shape[1]
    step = max(1, _CHUNK // max(1, b * h * s))
    for start in range(0, t, step):
        rows = slice(start, min(start + step, t))
        scores: Tensor = _products(q[:, rows], k) * rules.scale
        slope: Tensor | float = 1.0
        if rules.softcap:
            tanh = torch.tanh(scores / rules.softcap)
            scores, slope = rules.softcap * tanh, 1 - tanh * tanh
        for x in rules.added:
            scores = scores + wide(x)[:, :, rows]
        hidden = _hidden(rows, t, s, rules, q.device)
        yield rows, scores if hidden is None else scores.masked_fill(hidden, -math.inf), slope


def weights(scores: Tensor, t: int, rules: Rules) -> tuple[Tensor, Tensor]:
    """(softmax of [B H rows S] scores beside their sinks, lse), of t queries in all; a row that is all -inf has zeros and -inf, and no derivative."""
    s = scores.shape[-1]
    if rules.sinks is None and rules.mask is None and not rules.added and 0 < t <= s:  # every query sees a key
        return torch.softmax(scores, -1), torch.logsumexp(scores, -1)
    if rules.sinks is not None:
        sinks = wide(rules.sinks).to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], -1)
    nothing = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(nothing, 0.0)
    lse = torch.logsumexp(scores, -1).masked_fill(nothing[..., 0], -math.inf)
    return torch.softmax(scores, -1).masked_fill(nothing, 0.0)[..., :s], lse


def forward(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """out and lse, as wide as `wide` makes them. A query that sees nothing: zeros, and -inf or its head's sink."""
    wq, wk, wv = wide(q), wide(k), wide(v)
    out = wq.new_zeros(*q.shape[:3], v.shape[3])
    lse = wq.new_full((q.shape[0], q.shape[2], q.shape[1]), -math.inf)
    for rows, scores, _ in _scores(wq, wk, rules):
        p, lse[:, :, rows] = weights(scores, q.shape[1], rules)
        if rules.kept is not None:
            p = p * rules.kept[:, :, rows] * rules.factor
        out[:, rows] = _sums(p, wv)
    return out, lse


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dlse: Tensor | None, rules: Rules
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, list[Tensor]]:
    """dq, dk, dv, dsinks and the gradients of what is added to the scores, wide."""
    g, wq, wk, wv = wide(dout), wide(q), wide(k), wide(v)
    dq, dk, dv = wq.new_zeros(q.shape), wk.new_zeros(k.shape), wv.new_zeros(v.shape)
    dadded = [wide(x).new_zeros(x.shape) for x in rules.added]
    delta = (g * wide(out)).sum(-1).transpose(1, 2)
    if dlse is not None:
        delta = delta - dlse  # d lse / d s_j is p_j too
    base = torch.where(lse == -math.inf, 0.0, lse)  # a row that sees nothing: exp(-inf) = 0
    for rows, scores, slope in _scores(wq, wk, rules):
        p, dp = torch.exp(scores - base[:, :, rows, None]), _products(g[:, rows], wv)
        weights = p
        if rules.kept is not None:
            weights, dp = (x * rules.kept[:, :, rows] * rules.factor for x in (p, dp))
        ds = p * (dp - delta[:, :, rows, None])
        for x in dadded:
            x[:, :, rows] = ds.sum([i for i in (0, 1) if x.shape[i] < ds.shape[i]], keepdim=True) if x.shape[:2] != ds.shape[:2] else ds
        ds = ds * slope * rules.scale
        dv += _sums_of_heads(weights, g[:, rows], wv)
        dk += _sums_of_heads(ds, wq[:, rows], wk)
        dq[:, rows] = _sums(ds, wk)
    dsinks = None
    if rules.sinks is not None:
        share = torch.exp(wide(rules.sinks).to(base.dtype)[:, None] - torch.where(lse == -math.inf, math.inf, lse))
        dsinks = -(share * delta).sum((0, 2))
    return dq, dk, dv, dsinks, dadded


# ---- the plain operator ------------------------------------------------------------------------------------------------------


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    out, lse = forward(q, k, v, Rules(scale, right=0 if causal else -1))
    return out.to(q.dtype), lse


def attention_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv, _, _ = backward(dout, q, k, v, out, lse, None, Rules(scale, right=0 if causal else -1))
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
