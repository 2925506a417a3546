"""Attention with options, and of ragged sequences, in plain PyTorch: both by the rules of reference.py."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rooftile.ops._shared.philox import kept
from rooftile.ops._shared.philox import scale as kept_scale
from rooftile.ops._shared.reference import wide
from rooftile.ops.attention.reference import Rules, _hidden, _scores, _sums, backward, forward, sdpa, weights


def counted(s: int) -> int:
    """Elements of a row of weights, as dropout counts them: whole counters of Philox, four each."""
    return -(-s // 4) * 4


def _rules(q: Tensor, k: Tensor, sinks: Tensor | None, bias: Tensor | None, constant_bias: Tensor | None, mask: Tensor | None, seed: Tensor | None,
           numbers: tuple[float, int, int, float, float]) -> Rules:  # fmt: skip
    scale, left, right, softcap, p = numbers
    rules = Rules(scale, left, right, softcap, tuple(x for x in (bias, constant_bias) if x is not None), mask, sinks)
    if seed is None:
        return rules
    (b, t, h, _), s = q.shape, k.shape[1]
    return rules._replace(kept=kept(torch.Size((b, h, t, counted(s))), seed, p)[..., :s], factor=kept_scale(p))


def attention_options(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, bias: Tensor | None, constant_bias: Tensor | None, mask: Tensor | None,
    seed: Tensor | None, scale: float, left: int, right: int, softcap: float, p: float, deterministic: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, lse = forward(q, k, v, _rules(q, k, sinks, bias, constant_bias, mask, seed, (scale, left, right, softcap, p)))
    return out.to(q.dtype), lse


def attention_options_backward(
    dout: Tensor, dlse: Tensor, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, bias: Tensor | None, constant_bias: Tensor | None,
    mask: Tensor | None, seed: Tensor | None, out: Tensor, lse: Tensor, scale: float, left: int, right: int, softcap: float, p: float,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rules = _rules(q, k, sinks, bias, constant_bias, mask, seed, (scale, left, right, softcap, p))
    dq, dk, dv, dsinks, dadded = backward(dout, q, k, v, out, lse, dlse, rules)
    dbias = dadded[0] if bias is not None else None
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), like(sinks, dsinks, q), like(bias, dbias, q)


def like(given: Tensor | None, made: Tensor | None, q: Tensor) -> Tensor:
    """A gradient in its argument's dtype; of an argument that is not there, nothing."""
    return q.new_empty(0) if made is None or given is None else made.to(given.dtype)


# ---- what PyTorch's own arithmetic does --------------------------------------------------------------------------------------


def in_working_dtype(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """PyTorch in the tensors' dtype, as a fused kernel is at best: scores are float32, the weights are rounded before they meet v."""
    outs, lses = [], []
    for rows, scores, _ in _scores(wide(q), wide(k), rules):
        p, lse = weights(scores, q.shape[1], rules)
        if rules.kept is not None:
            p = p * rules.kept[:, :, rows] * rules.factor
        outs.append(_sums(wide(p.to(v.dtype)), wide(v)).to(v.dtype))
        lses.append(lse)
    if not outs:  # no queries
        return v.new_zeros(*q.shape[:3], v.shape[3]), wide(q).new_zeros(q.shape[0], q.shape[2], 0)
    return torch.cat(outs, 1), torch.cat(lses, 2)


def _sdpa_says(q: Tensor, k: Tensor, rules: Rules) -> bool:
    """PyTorch's own function has neither a soft cap, nor sinks, nor this dropout, and on a row that sees nothing it is NaN: it is asked where
    scores in memory would be too many."""
    return not rules.softcap and rules.sinks is None and rules.kept is None and q.shape[1] * k.shape[1] >= 2**22


def _sdpa(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    t, s = q.shape[1], k.shape[1]
    if rules.left < 0 and rules.mask is None and not rules.added and rules.right <= 0:
        return sdpa(q, k, v, rules.right == 0, rules.scale)
    hidden = _hidden(slice(0, t), t, s, rules, q.device)
    mask = None if hidden is None else ~hidden
    if rules.added:
        mask = rules.added[0] if hidden is None else rules.added[0].masked_fill(hidden, -math.inf)
    views = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*views, attn_mask=mask, scale=rules.scale, enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)


def by_torch(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor | tuple[Tensor, Tensor]:
    return _sdpa(q, k, v, rules) if _sdpa_says(q, k, rules) else in_working_dtype(q, k, v, rules)


def torch_options(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, bias: Tensor | None, constant_bias: Tensor | None, mask: Tensor | None,
    seed: Tensor | None, scale: float, left: int, right: int, softcap: float, p: float, deterministic: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    rules = _rules(q, k, sinks, bias, constant_bias, mask, seed, (scale, left, right, softcap, p))
    return by_torch(q, k, v, rules)
