"""The gradient of a norm of a sum, row after row with the next ones in flight: cuda.v3_pipeline of add_layernorm, add_rmsnorm and dropout_add_norm.

It stands beside sum_norms.py and not in it, so that what was measured of the rungs there still speaks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rooftile.core.kernel import Kernel
from rooftile.core.spec import Call
from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_norms import ELSEWHERE, any_row, at, few, said, types
from rooftile.ops._shared.cuda_partials import ADD_ROWS, add_rows
from rooftile.ops._shared.cuda_rows import PARK, Deal, deal, uneven
from rooftile.ops._shared.cuda_shares import evenly
from rooftile.ops._shared.launch import cdiv, rows
from rooftile.ops._shared.norms import Norm, gradients
from rooftile.ops._shared.sum_norms import stream

V3 = Source.beside(__file__, "sum_norm_v3_pipeline.cu")
SLOTS = 216 * 1024  # bytes of shared memory for the waiting rows of all blocks of a multiprocessor
PASSING = 64  # registers a thread wants beside its sums, and 24 more where it draws a mask


def _most(sum: Tensor, sums: int) -> int:
    """Vectors a thread at most: 32 columns of a sum or two, 24 of three."""
    return (32 if sums < 3 else 24) * sum.itemsize // 16


def _deal(dout: Tensor, sum: Tensor, sums: int, drops: bool, config: Mapping[str, int]) -> tuple[Deal, int]:
    """How rows are dealt, and bytes of shared memory: `resident` threads a multiprocessor, or as many as their sums have registers for, and so many
    stages as have room beside each other."""
    d = deal(sum, {**config, "stages": 1, "per": 1}, tensors=3, most=_most(sum, sums), widest=512)
    slot = d.vecs * d.threads * (32 + dout.itemsize * 16 // sum.itemsize)
    registers = PASSING + 24 * drops + sums * d.vecs * 16 // sum.itemsize
    per = max(
        1, min(min(config["resident"], 512 // registers * 128) // d.threads, SLOTS // slot)
    )  # a quarter has 512 for each lane of a warp
    stages = max(1, min(config["stages"], PARK // slot, SLOTS // (per * slot)))
    return replace(d, stages=stages, per=per), stages * slot


def backward(dout: Tensor, dsum: Tensor, sum: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, rstd: Tensor, norm: Norm,
             config: Mapping[str, int]) -> tuple[Tensor, ...]:  # fmt: skip
    """dx where it is not dresidual too, dresidual, dweight, dbias, dx_bias."""
    dx, dr, dweight, dbias = gradients(dout, sum, weight, bias, norm)
    dx_bias = dout.new_empty(0) if norm.x_bias is None else norm.x_bias.new_empty(norm.x_bias.shape)
    made = (dr, dweight, dbias, dx_bias) if dx is None else (dx, dr, dweight, dbias, dx_bias)
    dout, m, n, stride_dout = rows(dout)
    dsum, _, _, stride_dsum = rows(dsum)
    sum, _, _, stride_s = rows(sum)
    rstd = rstd.contiguous()
    mean = rstd if mean is None else mean.contiguous()
    seed, least, factor = norm.drawn(sum)
    w = at(weight, dout)
    columns = [g for g, p in ((dweight, weight), (dbias, bias), (dx_bias, norm.x_bias)) if p is not None]
    d, shared = _deal(dout, sum, len(columns), norm.seed is not None, config)
    blocks = d.blocks(sum, m)
    if m and d.rows > 1:
        blocks = evenly(cdiv(m, d.rows), blocks)
    full = n * sum.itemsize == 16 * d.lanes * d.vecs
    partial = sum.new_empty((len(columns) * blocks, n), dtype=torch.float32)
    there = said(norm.layer, weight is not None, bias is not None, norm.x_bias is not None)
    instance = (
        f"backward<{'Plain' if norm.seed is None else 'Dropped'}, {types(dout, sum, w)}, {there}, {d.instance}, {d.per}, {said(full)}>"
    )
    launch(V3, instance, blocks, d.threads, dout if dx is None else dx, dr, partial, dout, dsum, sum, w, mean, rstd, seed, m, n, stride_dout,
           stride_dsum, stride_s, least, factor, norm.offset or 0.0, shared=shared)  # fmt: skip
    if columns:
        add_rows(partial, *columns)
    return made


def add_layernorm_backward(dout: Tensor, dsum: Tensor, sum: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor,
                           x_bias: Tensor | None, *, config: Mapping[str, int]) -> tuple[Tensor, ...]:  # fmt: skip
    return backward(dout, dsum, sum, weight, bias, mean, rstd, Norm(layer=True, x_bias=x_bias), config)


def add_rmsnorm_backward(dout: Tensor, dsum: Tensor, sum: Tensor, weight: Tensor | None, rstd: Tensor, offset: float, *,
                         config: Mapping[str, int]) -> tuple[Tensor, ...]:  # fmt: skip
    return backward(dout, dsum, sum, weight, None, None, rstd, Norm(layer=False, offset=offset), config)[:2]


def dropout_add_norm_backward(dout: Tensor, dsum: Tensor, sum: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor,
                              seed: Tensor, p: float, norm: str, *, config: Mapping[str, int]) -> tuple[Tensor, ...]:  # fmt: skip
    return backward(dout, dsum, sum, weight, bias, mean, rstd, Norm(norm == "layer", seed=seed, p=p), config)[:4]


def _sums(call: Call) -> int:
    return len([name for name in ("weight", "bias", "x_bias") if call.get(name) is not None])


def whole_rows(call: Call) -> str | None:
    """512 threads of 128 registers hold the sums. A bias is an argument for its dtype only."""
    rest = {n: t for n, t in call.items() if n not in ("mean", "rstd", "seed", "x_bias")}
    n, sums = stream(call).shape[-1], _sums(call)
    longest = 512 * (24 if sums < 3 else 16)
    return (
        any_row(call)
        or uneven(rest)
        or (None if n <= longest else f"N={n} is longer than the {longest} columns whose {sums} sums 512 threads hold")
    )


def pick(call: Call) -> dict[str, int]:
    """A warp a row where 3 vectors a lane hold it: 384 threads, whose registers three sums and the weight fill, have two rows of three tensors waiting or
    arriving. Where 4 do and two sums are kept at most, 256 threads: two warps a row would be 8 blocks a multiprocessor, each of which leaves a row of
    partial sums for as few rows as its own; a third row asked for keeps the first one waiting, and gains nothing of many. Longer rows have 2 vectors a
    thread, and three rows where there is room."""
    x = stream(call)
    alone = cdiv(x.shape[-1] * x.itemsize, 512)
    if alone <= 3:
        return {"vecs": max(1, alone), "threads": 384, "stages": 2, "resident": 384}
    if alone == 4 and _sums(call) < 3:
        return {"vecs": 4, "threads": 256, "stages": 2, "resident": 256}
    return {"vecs": 2, "threads": 256, "stages": 3, "resident": 512}


WALKS = tuple(
    {"vecs": v, "threads": t, "stages": s, "resident": r}
    for v, t, s, r in (
        (3, 384, 2, 384), (3, 128, 2, 384), (3, 128, 3, 384), (3, 256, 2, 256), (3, 256, 4, 256), (3, 128, 4, 256), (6, 384, 2, 384), (6, 256, 3, 256),
        (2, 256, 2, 512), (2, 256, 3, 512), (2, 256, 3, 256), (4, 128, 2, 256), (4, 128, 3, 384), (4, 256, 3, 256), (4, 256, 2, 256), (1, 128, 2, 512)
    )
)  # fmt: skip


def rung(run: Callable[..., Any]) -> Kernel:
    return Kernel("cuda.v3_pipeline", run, "up to three sums in registers, beside them the weight and what of a row has room", whole_rows, WALKS, pick,
                  sources=(V3, ADD_ROWS), limits=ELSEWHERE, declines=few)  # fmt: skip


ADD_LAYERNORM = rung(add_layernorm_backward)
ADD_RMSNORM = rung(add_rmsnorm_backward)
DROPOUT_ADD_NORM = rung(dropout_add_norm_backward)
