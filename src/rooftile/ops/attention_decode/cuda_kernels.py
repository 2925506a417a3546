"""Decoding in CUDA C++: the plain rung, for reading beside the others, and one to which the copy engine brings whole rows."""

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, processors
from rooftile.ops.attention_decode.triton_kernels import splits_of

V1, V2 = (Source.beside(__file__, name) for name in ("v1_naive.cu", "v2_rows.cu"))
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

WARPS, ROWS = 8, 16  # as in the file


def _rows_e4m3(q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, *, config):
    b, t, h, d = q.shape
    (pages, page, g), paged = k_cache.shape[:3], block_table is not None
    room, heads = page * block_table.shape[1] if paged else page, config["heads"]
    keys, blocks = ROWS * WARPS // heads, b * g // heads
    tiles = cdiv(min(room, window + t - 1), keys) + 1 if window else cdiv(room, keys)
    splits = splits_of(blocks, tiles, processors(q))[0] if q.device.type != "cpu" else min(3, tiles)
    out, lse = q.new_empty(b, t, h, d), q.new_empty(b, h, t, dtype=torch.float32)
    part, part_max, part_sum = lse, lse, lse
    if splits > 1:
        part = q.new_empty(splits, b, t, h, d, dtype=torch.float32)
        part_max, part_sum = (q.new_empty(splits, b, t, h, dtype=torch.float32) for _ in range(2))
    table, sink = block_table if paged else lengths, q if sinks is None else sinks
    ks, vs = (lse if x is None else x for x in (k_scale, v_scale))
    row = heads * d * k_cache.itemsize
    stages = min(8, config["stages"] * 2**8 // (d * k_cache.itemsize))
    types = f"{CTYPE[sink.dtype]}, {d}"
    launch(V2, f"split<{CTYPE[q.dtype]}, {CTYPE[k_cache.dtype]}, {types}, {heads}, {stages}>", blocks * splits, 32 * (WARPS + 1), out, lse, part, part_max,
           part_sum, q, k_cache, v_cache, lengths, table, sink, ks, vs, b, t, h, g, room, pages, page if paged else 0, splits, window, sinks is not None,
           k_scale is not None, v_scale is not None, scale, softcap, 2 * b * room * g * d * k_cache.itemsize, *q.stride()[:3], *k_cache.stride()[:2],
           *v_cache.stride()[:2], lengths.stride(0), table.stride(0), table.stride(-1), sink.stride(0), ks.stride(0), vs.stride(0),
           shared=max(stages * 2 * keys * (row + 16), (WARPS - heads) * 64 * (d + 8)))  # fmt: skip
    if splits > 1:
        across, first = (1, 8) if splits <= 8 else (4, 34)
        launch(V2, f"join<{CTYPE[q.dtype]}, {types}, {across}, {first}>", b * t * h * d // 32, 32 * across, out, lse, part, part_max, part_sum, sink, b * t * h, t, h,
               splits, sinks is not None, sink.stride(0))  # fmt: skip
    return out, lse


def _rows(q, k_cache, v_cache, lengths, block_table, sinks, scale, window, softcap, *, config):
    return _rows_e4m3(q, k_cache, v_cache, lengths, None, None, block_table, sinks, scale, window, softcap, config=config)


def _refuse_rows(call):
    q, (t, h, d), g = call["q"], call["q"].shape[1:], call["k_cache"].shape[2]
    if q.dtype == torch.float32:
        return "its products are of 16-bit numbers, the tensor is float32"
    if d not in (64, 128):
        return f"D={d}, it is written for 64 and 128"
    if q.numel() == 0 or call["k_cache"].numel() == 0 or 0 in getattr(call["block_table"], "shape", ()):
        return "there is nothing to compute"
    if t * h // g > ROWS:
        return f"{t} queries of {h // g} heads a key head are {t * h // g} rows, it takes up to {ROWS}"
    for name in ("q", "k_cache", "v_cache"):
        x = call[name]
        past = 0 if isinstance(x, FakeTensor) else x.data_ptr() % 16
        if x.stride(-1) != 1 or past or any(s * x.itemsize % 16 for s in x.stride()[:3]) or (name != "q" and g > 1 and x.stride(2) != d):
            return f"{name} with strides {list(x.stride())} at {past} bytes past a multiple of 16 is not made of aligned rows, head behind head"
    return off_gpu(q)


HEADS = tuple({"heads": heads, "stages": stages} for heads in (8, 4, 2, 1) for stages in (3, 2))


def pick_rows(call):
    g = call["k_cache"].shape[2]
    return next(config for config in HEADS if g % config["heads"] == 0)


def _second(run):
    return Kernel(
        "cuda.v2_rows",
        run,
        "whole rows of the cache by the copy engine, a warp a key head",
        _refuse_rows,
        HEADS,
        pick_rows,
        limits=Limits(shared_bytes=227 * 1024),
        architectures=(90, 100, 103),
        sources=(V2,),
    )


KERNELS = (Kernel("cuda.v1_naive", _plain, "a block a query and head", _refuse, sources=(V1,)), _second(_rows))
KERNELS_E4M3 = (Kernel("cuda.v1_naive", _e4m3, "a block a query and head", _refuse, sources=(V1,)), _second(_rows_e4m3))
