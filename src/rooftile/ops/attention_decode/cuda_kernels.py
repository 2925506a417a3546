"""Decoding in CUDA C++: the plain rung, for reading beside the others, and one whose warps have pipelines of their own."""

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, processors
from rooftile.ops.attention_decode.triton_kernels import splits_of

V1, V2 = (Source.beside(__file__, name) for name in ("v1_naive.cu", "v2_warps.cu"))
BLOCK = 128


def _e4m3(q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap):
    b, t, h, d = q.shape
    (pages, page, g), paged = k_cache.shape[:3], block_table is not None
    q = q if q.stride(-1) == 1 else q.contiguous()
    out, lse = q.new_empty(b, t, h, d), q.new_empty(b, h, t, dtype=torch.float32)
    table, sink = lengths if block_table is None else block_table, q if sinks is None else sinks
    ks, vs = (lse if x is None else x for x in (k_scale, v_scale))
    instance = f"attention_decode<{CTYPE[q.dtype]}, {CTYPE[k_cache.dtype]}, {CTYPE[sink.dtype]}>"
    launch(V1, instance, b * t * h, BLOCK, out, lse, q, k_cache, v_cache, lengths, table, sink, ks, vs, t, h, g, d,
           table.shape[1] * page if paged else page, pages, page if paged else 0, window, int(sinks is not None), int(k_scale is not None),
           int(v_scale is not None), scale, softcap, *q.stride()[:3], *k_cache.stride()[:3], *v_cache.stride()[:3], lengths.stride(0),
           table.stride(0), table.stride(-1), sink.stride(0), ks.stride(0), vs.stride(0))  # fmt: skip
    return out, lse


def _plain(q, k_cache, v_cache, lengths, block_table, sinks, scale, window, softcap):
    return _e4m3(q, k_cache, v_cache, lengths, None, None, block_table, sinks, scale, window, softcap)


def _refuse(call):
    for name in ("k_cache", "v_cache"):
        if call[name].stride(-1) != 1:
            return f"the last axis of {name} has stride {call[name].stride(-1)}; a copy of the cache would cost more than the attention"
    return off_gpu(call["q"])


# ---- v2 ----------------------------------------------------------------------------------------------------------------------

KEYS, WIDEST, TILES = 16, 32, 384  # a tile's keys; the most rows of a block; columns of all tiles of a warp
READ_AGAIN = 2**62  # more bytes than pass through any L2


def _plan(config, rows, pairs, seen, window, where):
    """(shares of the keys, when the last block ends in tiles of a multiprocessor) for `pairs` of sequences and key heads."""
    tiles = cdiv(seen, KEYS * config["warps"]) + (1 if window else 0)
    return splits_of(pairs * cdiv(rows, WIDEST), tiles, 8 // config["warps"] * processors(where))


def _extent(call):
    """(rows of queries a key head, pairs of sequences and key heads, keys a sequence has room for, those that a window shows)."""
    (b, t, h, _), (_, page, g), table = call["q"].shape, call["k_cache"].shape[:3], call["block_table"]
    room = page if table is None else page * table.shape[1]
    return t * h // g, b * g, room, min(room, call["window"] + t - 1) if call["window"] else room


def _warps(q, k_cache, v_cache, lengths, block_table, sinks, scale, window, softcap, *, config):
    b, t, h, d = q.shape
    (pages, page, g), paged = k_cache.shape[:3], block_table is not None
    rows, pairs, room, seen = _extent({"q": q, "k_cache": k_cache, "block_table": block_table, "window": window})
    splits, _ = _plan(config, rows, pairs, seen, window, q) if q.device.type != "cpu" else (min(3, cdiv(seen, KEYS * config["warps"])), 0)
    high, tiles = min(2, cdiv(rows, 16)), cdiv(rows, WIDEST)
    out, lse = q.new_empty(b, t, h, d), q.new_empty(b, h, t, dtype=torch.float32)
    part, part_max, part_sum = lse, lse, lse
    if splits > 1:
        part = q.new_empty(splits, b, t, h, d, dtype=torch.float32)
        part_max, part_sum = (q.new_empty(splits, b, t, h, dtype=torch.float32) for _ in range(2))
    table, sink = lengths if block_table is None else block_table, q if sinks is None else sinks
    line, warps, stages = 2 * (d + 8), config["warps"], TILES // d
    shared = max(16 * high * line + warps * stages * 2 * KEYS * line, warps * 16 * high * 4 * (d + 10))
    kinds = f"{CTYPE[q.dtype]}, {CTYPE[sink.dtype]}, {d}"
    launch(V2, f"split<{kinds}, {high}, {warps}, {stages}>", pairs * splits * tiles, 32 * warps, out, lse, part, part_max, part_sum, q, k_cache, v_cache,
           lengths, table, sink, b, t, h, g, room, pages, page if paged else 0, splits, tiles, window, sinks is not None, scale, softcap,
           4 * b * room * g * d if tiles == 1 else READ_AGAIN, *q.stride()[:3], *k_cache.stride()[:3], *v_cache.stride()[:3], lengths.stride(0),
           table.stride(0), table.stride(-1), sink.stride(0), shared=shared)  # fmt: skip
    if splits > 1:
        launch(
            V2,
            f"join<{kinds}>",
            b * t * h,
            d,
            out,
            lse,
            part,
            part_max,
            part_sum,
            sink,
            b * t * h,
            t,
            h,
            splits,
            sinks is not None,
            sink.stride(0),
        )
    return out, lse


def _refuse_warps(call):
    q, cache, table = call["q"], call["k_cache"], call["block_table"]
    d = q.shape[-1]
    if q.dtype == torch.float32:
        return "its products are of 16-bit numbers, the tensor is float32"
    if d not in (64, 128):
        return f"D={d}, it is written for 64 and 128"
    if table is not None and cache.shape[1] % KEYS:
        return f"pages of {cache.shape[1]} keys, it takes multiples of {KEYS}"
    if q.numel() == 0 or 0 in _extent(call):
        return "there is nothing to compute"
    for name in ("q", "k_cache", "v_cache"):
        x = call[name]
        past = 0 if isinstance(x, FakeTensor) else x.data_ptr() % 16
        if x.stride(-1) != 1 or past or any(s % 8 for s in x.stride()[:3]):
            return f"{name} with strides {list(x.stride())} at {past} bytes past a multiple of 16 is not made of rows aligned to 16 bytes"
    return off_gpu(q)


# 8 warps a multiprocessor, in one block or in several, with tiles of 16 KiB under way each: 128 KiB.
WARPS = tuple({"warps": warps} for warps in (8, 4, 2))


def pick_warps(call):
    """Whichever ends soonest by its own plan of shares; two tiles of rows leave no room for four blocks."""
    rows, pairs, _, seen = _extent(call)
    return min(WARPS[: 2 if rows > 16 else 3], key=lambda config: _plan(config, rows, pairs, seen, call["window"], call["q"])[1])


KERNELS = (
    Kernel("cuda.v1_naive", _plain, "a block a query and head", _refuse, sources=(V1,)),
    Kernel(
        "cuda.v2_warps",
        _warps,
        "a pipeline a warp, 16 keys at a time; what passes through leaves the L2 first",
        _refuse_warps,
        WARPS,
        pick_warps,
        limits=Limits(shared_bytes=227 * 1024),
        architectures=(90, 100, 103),
        sources=(V2,),
    ),
)
KERNELS_E4M3 = (Kernel("cuda.v1_naive", _e4m3, "a block a query and head", _refuse, sources=(V1,)),)
