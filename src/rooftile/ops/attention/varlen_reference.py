"""Attention of sequences of ragged lengths that lie one behind another, in plain PyTorch: each is attention of a batch of one."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from rooftile.ops._shared.philox import kept
from rooftile.ops._shared.philox import scale as kept_scale
from rooftile.ops.attention.options_reference import by_torch, counted, like
from rooftile.ops.attention.reference import Rules, backward, forward

Part = tuple[slice, slice, Rules]


def check_offsets(name: str, cu: Tensor, rows: int, most: int) -> None:
    """A CPU can afford to look. On a GPU a program keeps to its tensor whatever the offsets say."""
    if cu.device.type != "cpu":
        return
    offsets = cu.tolist()
    if offsets[0] != 0 or offsets[-1] != rows:
        raise ValueError(f"attention_varlen: cu_seqlens_{name} goes from {offsets[0]} to {offsets[-1]}, and {name} has {rows} rows")
    for a, b in pairwise(offsets):
        if not 0 <= b - a <= most:
            raise ValueError(f"attention_varlen: a sequence of {name} has {b - a} rows, and max_seqlen_{name} is {most}")


def _parts(
    q: Tensor, k: Tensor, cu: tuple[Tensor, Tensor], most: tuple[int, int], seed: Tensor | None, p: float, rules: Rules
) -> Iterator[Part]:
    """Rows, keys and rules of each sequence, of none those of an empty one. Dropout counts the rows of all of them, [H, M], as if each had the longest's keys."""
    check_offsets("q", cu[0], q.shape[0], most[0])
    check_offsets("k", cu[1], k.shape[0], most[1])
    if len(cu[0]) == 1:
        yield slice(0), slice(0), rules
    all_kept = None if seed is None else kept(torch.Size((1, q.shape[1], q.shape[0], counted(most[1]))), seed, p)
    for (a, b), (c, d) in zip(pairwise(cu[0].tolist()), pairwise(cu[1].tolist())):
        drop = {} if all_kept is None else {"kept": all_kept[:, :, a:b, : d - c], "factor": kept_scale(p)}
        yield slice(a, b), slice(c, d), rules._replace(**drop)


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None, seed: Tensor | None,
    max_seqlen_q: int, max_seqlen_k: int, scale: float, left: int, right: int, softcap: float, p: float, deterministic: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    rules, outs, lses = Rules(scale, left, right, softcap, sinks=sinks), [], []
    for rows, keys, own in _parts(q, k, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), seed, p, rules):
        out, lse = forward(q[None, rows], k[None, keys], v[None, keys], own)
        outs.append(out[0])
        lses.append(lse[0])
    return torch.cat(outs).to(q.dtype), torch.cat(lses, 1)


def attention_varlen_backward(
    dout: Tensor, dlse: Tensor, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None,
    seed: Tensor | None, out: Tensor, lse: Tensor, max_seqlen_q: int, max_seqlen_k: int, scale: float, left: int, right: int, softcap: float,
    p: float, deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rules, made, dsinks = Rules(scale, left, right, softcap, sinks=sinks), [], None
    for rows, keys, own in _parts(q, k, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), seed, p, rules):
        saved = (out[None, rows], lse[None, :, rows], dlse[None, :, rows])
        *grads, ds, _ = backward(dout[None, rows], q[None, rows], k[None, keys], v[None, keys], *saved, own)
        made.append(grads)
        dsinks = ds if dsinks is None or ds is None else dsinks + ds
    dq, dk, dv = (torch.cat([g[0] for g in grads]).to(x.dtype) for grads, x in zip(zip(*made), (q, k, v)))
    return dq, dk, dv, like(sinks, dsinks, q)


def torch_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None, seed: Tensor | None,
    max_seqlen_q: int, max_seqlen_k: int, scale: float, left: int, right: int, softcap: float, p: float, deterministic: bool = False,
) -> Tensor | tuple[Tensor, ...]:  # fmt: skip
    """PyTorch sequence by sequence."""
    rules, made = Rules(scale, left, right, softcap, sinks=sinks), []
    for rows, keys, own in _parts(q, k, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), seed, p, rules):
        made.append(by_torch(q[None, rows], k[None, keys], v[None, keys], own))
    if all(isinstance(x, tuple) for x in made):
        return torch.cat([x[0][0] for x in made]), torch.cat([x[1][0] for x in made], 1)
    return torch.cat([(x[0] if isinstance(x, tuple) else x)[0] for x in made])
