"""Many queries over long caches: prefill in chunks, whose keys the cache holds already. Floor: 4 D operations a visible pair. At T = 2048 of S = 16384, 32/8
heads of 128, that is 515e9, 0.52 ms at 989 TFLOP/s, where the cache is 67 MB and 16 us: operations decide.

A program owns BLOCK_M rows, queries x heads of one key head, neighbours in that order: of four heads 64 rows are 16 places, so that a key is read once for four heads
and a tile crosses few diagonals. It walks the keys that any of its rows sees, from the first's window to the last's own place: without masks where all rows
see all keys, with them before and behind. The steps are `triton`'s own, pages and 8 bits with them.

Where programs are fewer than run at a time (17 queries of one long sequence), the keys are split as `triton` splits them, and added up in order.
8-bit keys and values that many tiles see are widened once, into memory of the call: 5 bytes an element in place of one, where each tile would issue as much for
widening as for a quarter of its products. Predicted 1.6 times as fast at that shape.

Predicted: 500 TFLOP/s on an H200 at that shape, where `attention`'s `triton.wide` has 536 of the same tiles without pages: its loop is 369 instructions for sm_90, this one 399, and
409 with pages, since a score is scaled before its maximum: a scale may be negative here. Pages of whole tiles are one number a tile, which comes a tile ahead.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.architecture import architecture
from rooftile.ops._shared.e4m3 import WITH_E4M3
from rooftile.ops._shared.launch import cdiv, launch, power_of_2, processors
from rooftile.ops.attention_decode.spec import QUERIES
from rooftile.ops.attention_decode.triton_kernels import (
    LN2,
    WITHOUT_E4M3,
    _as,
    _attend,
    _combine,
    _halves,
    _leave,
    _refuse,
    splits_of,
)


@triton.jit
def _chunk(gQ, gK, gV, gLengths, gTable, gSinks, gKs, gVs, gOut, gLse, gPart, gPartMax, gPartSum, B, T, H, G, room, pages, splits, tiles, window,
           scale_in, scale_out, q_b, q_t, q_h, k_m, k_s, k_g, v_m, v_s, v_g, stride_length, stride_row, stride_page, stride_sink, stride_ks,
           stride_vs, GROUP: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, SINKS: tl.constexpr,
           K_SCALE: tl.constexpr, V_SCALE: tl.constexpr, BY_HAND: tl.constexpr, HALF: tl.constexpr, WHOLE: tl.constexpr, UNIT: tl.constexpr,
           D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Programs of one key head are neighbours and find its keys in the L2; the last queries, who see the most, begin first. HALF, WHOLE and UNIT are `_split`'s."""
    FULL: tl.constexpr = gQ.dtype.element_ty == tl.float32
    i_tile = tiles - 1 - tl.program_id(0) % tiles
    i_s = tl.program_id(0) // tiles % splits
    i_bg = tl.program_id(0) // (tiles * splits)
    i_b, i_g = (i_bg // G).to(tl.int64), (i_bg % G).to(tl.int64)
    length = tl.load(gLengths + i_b * stride_length)
    wrong = (length < 0) | (length > room)
    length = tl.where(wrong, 0, length)
    i_m = i_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    i_t, i_h = i_m // GROUP, i_g * GROUP + i_m % GROUP
    i_d = tl.arange(0, BLOCK_D)
    in_m = i_m < T * GROUP
    there = in_m[:, None] & (i_d < D)[None, :]
    rQ = tl.load(gQ + i_b * q_b + (i_t.to(tl.int64) * q_t + i_h * q_h)[:, None] + i_d[None, :], mask=there, other=0.0)
    if K_SCALE:
        scale_in = scale_in * tl.load(gKs + i_g * stride_ks)
    LIFT: tl.constexpr = 15 if HALF else 0
    if HALF and rQ.dtype == tl.bfloat16:
        rQ, rPower = _halves(rQ)
        scale_in = scale_in * rPower
    i_p = length - T + i_t  # the place of a query, and the last key that it sees
    earliest = length - T + i_tile * BLOCK_M // GROUP
    latest = length - T + tl.minimum((i_tile * BLOCK_M + BLOCK_M - 1) // GROUP, T - 1)
    end = tl.maximum(latest + 1, 0)  # of the keys that any row sees; they are below the length
    begin = 0
    if WINDOW:
        begin = tl.minimum(tl.maximum(earliest - window + 1, 0), end) // BLOCK_N * BLOCK_N
    share = tl.cdiv(tl.cdiv(end - begin, BLOCK_N), splits) * BLOCK_N
    first = begin + i_s * share
    last = tl.minimum(first + share, end)
    # from here on, and up to there, every row sees every key
    whole_end = tl.maximum(tl.minimum(last, tl.maximum(earliest + 1, 0)) // BLOCK_N * BLOCK_N, first)
    whole = first
    if WINDOW:
        whole = tl.minimum(tl.maximum(tl.cdiv(tl.maximum(latest - window + 1, 0), BLOCK_N) * BLOCK_N, first), whole_end)
    gK += i_g * k_g
    gV += i_g * v_g
    ahead = 0
    if PAGE:
        gTable += i_b * stride_row
        if PAGE % BLOCK_N == 0:
            ahead = tl.load(gTable + first // PAGE * stride_page, mask=first < last, other=0)
    else:
        gK += i_b * k_m
        gV += i_b * v_m
    rMax = tl.full([BLOCK_M], float("-inf"), tl.float32)
    rSum = tl.zeros([BLOCK_M], tl.float32)
    rAcc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if WINDOW:
        rAcc, rSum, rMax, ahead = _attend(rAcc, rSum, rMax, ahead, rQ, gK, gV, gTable, first, whole, BLOCK_N, end, i_p, window, pages, scale_in,
                                          scale_out, k_m, k_s, v_m, v_s, stride_page, True, PAGE, WINDOW, CAPPED, BY_HAND, FULL, LIFT, D, BLOCK_D,
                                          BLOCK_N)  # fmt: skip
    rAcc, rSum, rMax, ahead = _attend(rAcc, rSum, rMax, ahead, rQ, gK, gV, gTable, whole, whole_end, BLOCK_N, end, i_p, window, pages, scale_in,
                                      scale_out, k_m, k_s, v_m, v_s, stride_page, False, PAGE, WINDOW, CAPPED, BY_HAND, FULL, LIFT, D, BLOCK_D,
                                      BLOCK_N)  # fmt: skip
    rAcc, rSum, rMax, ahead = _attend(rAcc, rSum, rMax, ahead, rQ, gK, gV, gTable, whole_end, last, BLOCK_N, end, i_p, window, pages, scale_in,
                                      scale_out, k_m, k_s, v_m, v_s, stride_page, True, PAGE, WINDOW, CAPPED, BY_HAND, FULL, LIFT, D, BLOCK_D,
                                      BLOCK_N)  # fmt: skip
    if V_SCALE:
        rAcc *= tl.load(gVs + i_g * stride_vs)
    _leave(rAcc, tl.where(wrong, float("nan"), rSum), rMax - LIFT, gSinks, gOut, gLse, gPart, gPartMax, gPartSum, B, T, H, i_b, i_t, i_h, i_s, i_d, in_m,
           stride_sink, SINKS, WHOLE, FULL, UNIT, D)  # fmt: skip


SHARE = 4  # steps, the unit of a share: 64 rows of sums of 128 numbers, written and read again, are 64 KiB, as long as some four steps


def _run(by_hand, q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, config):
    b, t, h, d = q.shape
    (pages, page, g), paged = k_cache.shape[:3], block_table is not None
    q = q if q.stride(-1) == 1 or d == 1 else q.contiguous()
    out, lse = q.new_empty(b, t, h, d), q.new_empty(b, h, t, dtype=torch.float32)
    room = block_table.shape[1] * page if paged else page
    table, sink, ks, vs = (y if x is None else x for x, y in ((block_table, lengths), (sinks, q), (k_scale, lse), (v_scale, lse)))
    group, block_n = h // g, config["BLOCK_N"]
    block_m = min(config["BLOCK_M"], max(16, power_of_2(t * group)))
    tiles, seen = cdiv(t * group, block_m), min(room, window + cdiv(block_m, group)) if window else room
    splits, slots = 1, processors(q) * 8 // config["num_warps"]
    if b * g * tiles < slots:
        splits, _ = splits_of(b * g * tiles, cdiv(seen, SHARE * block_n), slots)
    part, part_max, part_sum = out, lse, lse
    if splits > 1:
        part = q.new_empty(splits, b, t, h, d, dtype=torch.float32)
        part_max, part_sum = (q.new_empty(splits, b, t, h, dtype=torch.float32) for _ in range(2))
    half = k_cache.itemsize == 1 and q.itemsize == 2 and not by_hand
    unit = 1.0 if q.dtype == torch.float32 else LN2
    scale_in, scale_out = (scale / softcap, softcap / unit) if softcap else (scale / unit, 1.0)
    both = {"UNIT": unit, "D": d, "BLOCK_D": power_of_2(d)}
    launch(_chunk, (b * g * splits * tiles,), q, k_cache, v_cache, lengths, table, sink, ks, vs, out, lse, part, part_max, part_sum, b, t, h, g,
           room, pages, splits, tiles, window, scale_in, scale_out, *q.stride()[:3], *k_cache.stride()[:3], *v_cache.stride()[:3],
           lengths.stride(0), table.stride(0), table.stride(-1), sink.stride(0), ks.stride(0), vs.stride(0), GROUP=group,
           PAGE=page if paged else 0, WINDOW=window > 0, CAPPED=softcap > 0, SINKS=sinks is not None, K_SCALE=k_scale is not None,
           V_SCALE=v_scale is not None, BY_HAND=by_hand, HALF=half, WHOLE=splits == 1, **both, BLOCK_M=block_m, BLOCK_N=block_n,
           num_warps=config["num_warps"], num_stages=config["num_stages"])  # fmt: skip
    if splits > 1:
        launch(_combine, (b * t * h,), part, part_max, part_sum, sink, out, lse, b * t * h, t, h, splits, sink.stride(0), SINKS=sinks is not None,
               EARLY=False, **both, CHUNK=min(64, power_of_2(splits)), num_warps=2)  # fmt: skip
    return out, lse


def attention_decode(q, k_cache, v_cache, lengths, block_table, sinks, scale, window, softcap, *, config):
    return _run(False, q, k_cache, v_cache, lengths, None, None, block_table, sinks, scale, window, softcap, config)


def _e4m3(q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, *, config):
    return _run(False, q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, config)


def _by_hand(q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, *, config):
    return _run(True, q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, config)


@triton.jit
def _widen(gK, gV, gLengths, gTable, gOutK, gOutV, T, G, room, pages, tiles, window, k_m, k_s, k_g, v_m, v_s, v_g, stride_length, stride_row,
           stride_page, PAGE: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """A head's keys and values of a tile that anybody sees, in the order of their places; NaN where their page does not exist. By hand on every GPU: bytes decide."""
    i_g, i_tile, i_b = tl.program_id(0) % G, tl.program_id(0) // G % tiles, (tl.program_id(0) // (G * tiles)).to(tl.int64)
    length = tl.load(gLengths + i_b * stride_length)
    length = tl.where(length > room, 0, length)
    i_n, i_d = i_tile * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    seen = i_n < length
    if WINDOW:
        seen = seen & (i_n > length - T - window)
    row, slot, known = i_b, i_n.to(tl.int64), seen
    if PAGE:
        row = tl.load(gTable + i_b * stride_row + i_n // PAGE * stride_page, mask=seen, other=-1).to(tl.int64)
        slot, known = slot % PAGE, (row >= 0) & (row < pages)
    there = seen[:, None] & (i_d < D)[None, :]
    to = ((i_b * room + i_n) * G + i_g)[:, None] * D + i_d[None, :]
    rK = tl.load(gK + (row * k_m + slot * k_s + i_g * k_g)[:, None] + i_d[None, :], mask=there & known[:, None], other=0x7F)
    rV = tl.load(gV + (row * v_m + slot * v_s + i_g * v_g)[:, None] + i_d[None, :], mask=there & known[:, None], other=0x7F)
    tl.store(gOutK + to, _as(rK, gOutK.dtype.element_ty, True), mask=there)
    tl.store(gOutV + to, _as(rV, gOutV.dtype.element_ty, True), mask=there)


def _widened(q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, *, config):
    (b, t), (pages, page, g, d), paged = q.shape[:2], k_cache.shape, block_table is not None
    room, block_n = block_table.shape[1] * page if paged else page, 64
    k, v = (q.new_empty(b, room, g, d) for _ in range(2))
    table, tiles = block_table if paged else lengths, cdiv(room, block_n)
    if k.numel():
        launch(_widen, (b * tiles * g,), k_cache, v_cache, lengths, table, k, v, t, g, room, pages, tiles, window, *k_cache.stride()[:3],
               *v_cache.stride()[:3], lengths.stride(0), table.stride(0), table.stride(-1), PAGE=page if paged else 0, WINDOW=window > 0, D=d,
               BLOCK_D=power_of_2(d), BLOCK_N=block_n, num_warps=4)  # fmt: skip
    return _run(False, q, k, v, lengths, k_scale, v_scale, None, sinks, scale, window, softcap, config)


ROWS = 512  # queries x heads of a key head: eight tiles that would each widen what they see


def _few_rows(call):
    (_, t, h, _), g = call["q"].shape, call["k_cache"].shape[2]
    return (
        f"{t * h // g} rows share keys, which are sooner widened by each tile of them; from {ROWS} they are not"
        if t * h // g < ROWS
        else None
    )


def _many(refuse, low=0, high=256):
    """Of the calls that the steps take, those of many queries and of heads that the tiles are for."""

    def refuse_others(call):
        q = call["q"]
        t, d = q.shape[1], q.shape[-1]
        if t <= QUERIES:
            return f"{t} queries a sequence: up to {QUERIES} are for the kernels that walk all of its keys for each"
        if (said := refuse({**call, "q": q[:, :QUERIES]})) is not None:  # where more of them lie is counted in 64 bits here
            return said
        return None if low < d <= high else f"D={d} is for triton.{'chunk' if d <= NARROW else 'chunk_wide'}"

    return refuse_others


def few(kernel):
    """A kernel that walks all keys of a sequence for each of its queries, for as many as that is good for."""

    def refuse(call):
        t = call["q"].shape[1]
        return f"{t} queries a sequence, it takes up to {QUERIES}: more are for triton.chunk" if t > QUERIES else kernel.refuse(call)

    return replace(kernel, refuse=refuse)


def _tiles(m, n, warps, stages):
    return {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}


NARROW = 128  # numbers of a head
CONFIGS = (_tiles(64, 64, 4, 3), _tiles(128, 64, 8, 3), _tiles(128, 128, 8, 2), _tiles(128, 64, 8, 2), _tiles(64, 64, 4, 2),
           _tiles(64, 32, 4, 3))  # fmt: skip
CONFIGS_WIDE = (_tiles(128, 64, 8, 2), _tiles(64, 64, 8, 2), _tiles(128, 32, 8, 2), _tiles(64, 32, 8, 2))  # the last for blocks of 99 KiB
CONFIGS_32 = (_tiles(32, 32, 8, 1), _tiles(16, 32, 8, 1), _tiles(16, 16, 8, 1))
WIDE_8_BITS = _tiles(32, 32, 4, 2)  # what is widened stands in registers: larger tiles of 256 numbers spill
CONFIGS_8_BITS = (*CONFIGS, WIDE_8_BITS)


def pick_wide(call):
    """As attention's widest on an H200; sm_80 takes the factors of its products from registers, and 128 rows of them spill 592 bytes."""
    return CONFIGS_WIDE[architecture(call["q"]) < 90]


def pick_32(call):
    """Fused multiply-adds take whole rows of keys in registers."""
    d = call["q"].shape[-1]
    return CONFIGS_32[0 if d <= 64 else 1 if d <= NARROW else 2]


def pick_8_bits(call):
    if call["q"].dtype == torch.float32:
        return pick_32(call)
    return CONFIGS_8_BITS[0] if call["q"].shape[-1] <= NARROW else WIDE_8_BITS


# sm_90 spills nothing of heads of up to 128 but four registers of float32 queries beside 8 bits. sm_80, whose products take their factors from registers,
# does, the most where it widens 8 bits by hand from pages that are no whole tiles.
SPILLS, SPILLS_8_BITS = Limits(spill_bytes_elsewhere=32), Limits(spill_bytes=16, spill_bytes_elsewhere=32)
SPILLS_BY_HAND = Limits(spill_bytes_elsewhere=136)
SPILLS_WIDE = Limits(spill_bytes=128, spill_bytes_elsewhere=152, shared_bytes=227 * 1024)
KERNELS = (
    Kernel("triton.chunk", attention_decode, "tiles of queries, each over the keys that it sees", _many(_refuse(False), 0, NARROW), CONFIGS, limits=SPILLS),
    Kernel("triton.chunk_wide", attention_decode, "the same for 128 < D", _many(_refuse(False), NARROW), CONFIGS_WIDE, pick_wide, SPILLS_WIDE),
    Kernel("triton.chunk_float32", attention_decode, "true float32: fused multiply-adds, no tf32", _many(_refuse(True)), CONFIGS_32, pick_32, SPILLS),
)  # fmt: skip
KERNELS_E4M3 = (
    Kernel("triton.chunk_widened", _widened, "keys and values become 16 bits once, and not by each tile that sees them", _many(_refuse(False), 0, NARROW), CONFIGS[1:],
           limits=SPILLS, declines=_few_rows),
    Kernel("triton.chunk", _e4m3, "the same with keys and values of 8 bits", _many(_refuse(None)), CONFIGS_8_BITS, pick_8_bits, SPILLS_8_BITS, WITH_E4M3),
    Kernel("triton.chunk_by_hand", _by_hand, "8 bits widened by integer operations", _many(_refuse(None)), CONFIGS_8_BITS, pick_8_bits,
           SPILLS_BY_HAND, WITHOUT_E4M3),
)  # fmt: skip
