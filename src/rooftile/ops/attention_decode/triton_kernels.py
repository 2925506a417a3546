"""A few queries over long caches, split along the keys. Floor: keys and values pass once; at 16 bits 2 B S G D x 2 bytes, and 4 T H / G operations
for 4 bytes of them, 4 a byte at one query of 4 heads: bytes decide. At 32/8 heads of 128 the shapes of the acceptance, (B, S) = (16, 8192),
(1, 65536) and (64, 2048), are 537, 268 and 537 MB: 128, 64 and 128 us at 4.2 TB/s. The products cost 16 rows whatever T H / G is below that: 16
operations a byte, 67 TFLOP/s at full bandwidth, a tenth of the tensor cores.

A program owns a share of one sequence's keys for all T queries of the heads that share a key head, so that a key is read once. Which share follows
from the length on the device; how many shares from shapes and multiprocessors alone, so that a graph may be replayed while sequences grow. A second
kernel adds the shares up in order: the same bits every time. Predicted: its launch and reads cost 3 us where there are splits, a start 1 us.
"""

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.architecture import architecture
from rooftile.ops._shared.e4m3 import WITH_E4M3
from rooftile.ops._shared.launch import cdiv, launch, launch_described, off_gpu, power_of_2, processors

LN2 = 0.6931471805599453  # exp(x) = exp2(x / ln 2)


@triton.jit
def _tile(gX, at, i_d, there, MASKED: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows that begin `at` behind gX, zeros where they are not there. A whole tile pays for no mask."""
    if MASKED:
        if D == BLOCK_D:
            rX = tl.load(gX + at[:, None] + i_d[None, :], mask=there[:, None], other=0.0)
        else:
            rX = tl.load(gX + at[:, None] + i_d[None, :], mask=there[:, None] & (i_d < D)[None, :], other=0.0)
    else:
        if D == BLOCK_D:
            rX = tl.load(gX + at[:, None] + i_d[None, :])
        else:
            rX = tl.load(gX + at[:, None] + i_d[None, :], mask=(i_d < D)[None, :], other=0.0)
    return rX


@triton.jit
def _as(rX, like: tl.constexpr, BY_HAND: tl.constexpr):
    """e4m3 as a wider float, exactly. By hand, from its bits: as a float16's they are 2^8 too small, subnormals as well."""
    if BY_HAND:
        bits = rX.to(tl.uint16)
        rHalf = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
        rY = tl.where((bits & 0x7F) == 0x7F, float("nan"), rHalf.to(tl.float32)).to(like)
    else:
        rY = (rX if rX.dtype != tl.uint8 else rX.to(tl.float8e4nv, bitcast=True)).to(like)
    return rY


@triton.jit
def _halves(rQ):
    """bfloat16 as float16 and what each row was divided by, a power of 2: exact but for what is 2^-24 of its row's largest."""
    rX = rQ.to(tl.float32)
    exponent = tl.max(tl.abs(rX), 1).to(tl.int32, bitcast=True) >> 23
    exponent = tl.minimum(tl.maximum(exponent, 1), 253)  # with an inverse
    rX *= ((254 - exponent) << 23).to(tl.float32, bitcast=True)[:, None]
    return rX.to(tl.float16), (exponent << 23).to(tl.float32, bitcast=True)[:, None]


@triton.jit
def _power(rX, FULL: tl.constexpr):
    """e^x for scores to base e, where the queries are float32: 2^x takes two units in the last place, and sums of a few keys are held to less. For
    16 bits 2^x of scores to base 2."""
    return libdevice.exp(rX) if FULL else tl.exp2(rX)


@triton.jit
def _log(rX, FULL: tl.constexpr):
    return libdevice.log(rX) if FULL else tl.log2(rX)


@triton.jit
def _pages(gTable, start, length, i_n, there, stride_page, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Which page holds each key of a tile, where pages are no whole tiles. Single numbers where tiles are whole pages: a load of many that leads to
    another gets stages of its own in the pipeline, which leaves keys and values one buffer; these come from L1, with the addresses."""
    if BLOCK_N % PAGE == 0 and BLOCK_N <= 8 * PAGE:
        page = tl.zeros([BLOCK_N], tl.int32)
        for i in tl.static_range(BLOCK_N // PAGE):
            first = start + i * PAGE
            one = tl.load(gTable + first // PAGE * stride_page, mask=first < length, other=0)
            page = tl.where(tl.arange(0, BLOCK_N) // PAGE == i, one, page)
    else:
        page = tl.load(gTable + i_n // PAGE * stride_page, mask=there, other=0)
    return page


@triton.jit
def _attend(rAcc, rSum, rMax, ahead, rQ, gK, gV, gTable, first, last, step, length, i_p, window, pages, scale_in, scale_out, k_m, k_s, v_m, v_s,
            stride_page, MASKED: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, BY_HAND: tl.constexpr,
            FULL: tl.constexpr, LIFT: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Every so many keys of first..last a tile, into the running maximum and sums, which are 2^LIFT of what they are. Where pages are whole tiles `ahead`
    is the next tile's page, asked for a tile before it leads to keys."""
    i_d = tl.arange(0, BLOCK_D)
    rows = tl.arange(0, BLOCK_N)
    for start in range(first, last, step):
        i_n = start + rows
        there = i_n < length
        if WINDOW:  # what lies before every query's window may be another's by now
            there = there & (i_n > tl.min(i_p, 0) - window)
        scale = scale_in
        from_k, from_v, at_k, at_v = gK, gV, rows * k_s, rows * v_s
        if PAGE > 0 and PAGE % BLOCK_N == 0:
            known = (ahead >= 0) & (ahead < pages)
            page = tl.where(known, ahead, 0).to(tl.int64)
            scale = tl.where(known, scale_in, float("nan"))  # a page that does not exist
            ahead = tl.load(gTable + (start + step) // PAGE * stride_page, mask=start + step < length, other=0)
            from_k += page * k_m + start % PAGE * k_s
            from_v += page * v_m + start % PAGE * v_s
        elif PAGE:
            page = _pages(gTable, start, length, i_n, there, stride_page, PAGE, BLOCK_N)
            known = (page >= 0) & (page < pages)
            page = tl.where(known, page, 0).to(tl.int64)
            at_k = page * k_m + i_n % PAGE * k_s
            at_v = page * v_m + i_n % PAGE * v_s
        else:
            from_k += tl.cast(start, tl.int64) * k_s
            from_v += tl.cast(start, tl.int64) * v_s
        rK = _as(_tile(from_k, at_k, i_d, there, MASKED, D, BLOCK_D), rQ.dtype, BY_HAND)
        rS = tl.dot(rQ, tl.trans(rK), input_precision="ieee") * scale
        if CAPPED:
            rS = libdevice.tanh(rS) * scale_out
        if PAGE > 0 and PAGE % BLOCK_N != 0:
            rS = tl.where(known[None, :], rS, float("nan"))
        if MASKED:
            seen = i_n[None, :] <= i_p[:, None]
            if WINDOW:
                seen = seen & (i_n[None, :] > i_p[:, None] - window)
            rS = tl.where(seen, rS, float("-inf"))
        new = tl.maximum(rMax, tl.max(rS, 1))
        base = tl.where(new == float("-inf"), 0.0, new)  # -inf - -inf: a row that has seen nothing yet
        rP = _power(rS - (base - LIFT)[:, None], FULL)
        shrink = _power(rMax - base, FULL)
        rSum = rSum * shrink + tl.sum(rP, 1)
        rV = _as(_tile(from_v, at_v, i_d, there, MASKED, D, BLOCK_D), rQ.dtype, BY_HAND)
        rAcc = tl.dot(rP.to(rQ.dtype), rV, rAcc * shrink[:, None], input_precision="ieee")
        rMax = new
    return rAcc, rSum, rMax, ahead


@triton.jit
def _with_sink(rMax, rSum, rSink, FULL: tl.constexpr):
    """The maximum and the sum with a score more, and what the sums so far shrink by."""
    most = tl.maximum(rMax, rSink)
    base = tl.where(most == float("-inf"), 0.0, most)
    shrink = _power(rMax - base, FULL)
    return most, rSum * shrink + _power(rSink - base, FULL), shrink


@triton.jit
def _leave(rAcc, rSum, rMax, gSinks, gOut, gLse, gPart, gPartMax, gPartSum, B, T, H, i_b, i_t, i_h, i_s, i_d, in_m, stride_sink, SINKS: tl.constexpr,
           WHOLE: tl.constexpr, FULL: tl.constexpr, UNIT: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """Rows' results, or where there are several splits what `_combine` adds up."""
    row = (i_b * T + i_t) * H + i_h
    there = in_m[:, None] & (i_d < D)[None, :]
    if WHOLE:
        if SINKS:
            rSink = tl.load(gSinks + i_h * stride_sink, mask=in_m, other=0.0).to(tl.float32) * (1.0 / UNIT)
            rMax, rSum, shrink = _with_sink(rMax, rSum, rSink, FULL)
            rAcc *= shrink[:, None]
        rOut = rAcc / tl.where(rSum == 0.0, 1.0, rSum)[:, None]
        tl.store(gOut + row[:, None] * D + i_d[None, :], rOut.to(gOut.dtype.element_ty), mask=there)
        tl.store(gLse + (i_b * H + i_h) * T + i_t, (rMax + _log(rSum, FULL)) * UNIT, mask=in_m)
    else:
        row += i_s.to(tl.int64) * B * T * H
        tl.store(gPart + row[:, None] * D + i_d[None, :], rAcc, mask=there)
        tl.store(gPartMax + row, rMax, mask=in_m)
        tl.store(gPartSum + row, rSum, mask=in_m)


@triton.jit
def _split(gQ, gK, gV, gLengths, gTable, gSinks, gKs, gVs, gOut, gLse, gPart, gPartMax, gPartSum, B, T, H, G, room, pages, splits, tiles, window,
           scale_in, scale_out, q_b, q_t, q_h, k_m, k_s, k_g, v_m, v_s, v_g, stride_length, stride_row, stride_page, stride_sink, stride_ks,
           stride_vs, GROUP: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, SINKS: tl.constexpr,
           K_SCALE: tl.constexpr, V_SCALE: tl.constexpr, BY_HAND: tl.constexpr, HALF: tl.constexpr, WHOLE: tl.constexpr, EARLY: tl.constexpr, UNIT: tl.constexpr,
           D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Tiles of rows (queries x heads of one key head) are neighbours and find the keys in the L2. HALF: keys and values of 8 bits become float16, two in one
    instruction, where bfloat16 takes five more; weights are lifted by 2^15, below which float16 ends. WHOLE: one split, whose result is the result.
    EARLY: the second kernel may be made ready from now on; it waits for the end of this one. UNIT: of a score, in natural logarithms."""
    if EARLY:
        gdc_launch_dependents()
    FULL: tl.constexpr = gQ.dtype.element_ty == tl.float32
    # Tiles are dealt out to the shares, so that what is read at a time lies together; of several pages a tile each share is one stretch, served by a line of the table.
    IN_TURN: tl.constexpr = PAGE == 0 or PAGE % BLOCK_N == 0
    i_tile = tl.program_id(0) % tiles
    i_s = tl.program_id(0) // tiles % splits
    i_bg = tl.program_id(0) // (tiles * splits)
    i_b, i_g = (i_bg // G).to(tl.int64), (i_bg % G).to(tl.int64)
    length = tl.load(gLengths + i_b * stride_length)
    if PAGE:
        gTable += i_b * stride_row
    ahead = 0
    if PAGE > 0 and IN_TURN and not WINDOW:  # beside the length, not after it, which is another 0.8 us from a cold L2
        ahead = tl.load(gTable + i_s * BLOCK_N // PAGE * stride_page, mask=i_s * BLOCK_N < room, other=0)
    wrong = (length < 0) | (length > room)
    length = tl.where(wrong, 0, length)
    i_m = i_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    i_t, i_h = i_m // GROUP, i_g * GROUP + i_m % GROUP
    i_d = tl.arange(0, BLOCK_D)
    in_m = i_m < T * GROUP
    there = in_m[:, None] & (i_d < D)[None, :]
    rQ = tl.load(gQ + i_b * q_b + (i_t * q_t + i_h * q_h)[:, None] + i_d[None, :], mask=there, other=0.0)
    if K_SCALE:
        scale_in = scale_in * tl.load(gKs + i_g * stride_ks)
    LIFT: tl.constexpr = 15 if HALF else 0
    if HALF and rQ.dtype == tl.bfloat16:
        rQ, rPower = _halves(rQ)
        scale_in = scale_in * rPower
    i_p = length - T + i_t  # the place of a query, and the last key that it sees
    lowest = 0
    if WINDOW:
        lowest = tl.maximum(length - T - window + 1, 0) // BLOCK_N
    if IN_TURN:
        first, last, step = (lowest + i_s) * BLOCK_N, length, splits * BLOCK_N
    else:
        share = tl.cdiv(tl.cdiv(length, BLOCK_N) - lowest, splits)
        first, step = (lowest + i_s * share) * BLOCK_N, BLOCK_N
        last = tl.minimum(first + share * BLOCK_N, length)
    if WINDOW and PAGE > 0 and IN_TURN:
        ahead = tl.load(gTable + first // PAGE * stride_page, mask=first < length, other=0)
    gK += i_g * k_g
    gV += i_g * v_g
    if PAGE == 0:
        gK += i_b * k_m
        gV += i_b * v_m
    rMax = tl.full([BLOCK_M], float("-inf"), tl.float32)
    rSum = tl.zeros([BLOCK_M], tl.float32)
    rAcc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    masked = first  # from here on not every query sees every key
    if not WINDOW:
        whole = tl.minimum(last, tl.maximum(length - T + 1, 0)) // BLOCK_N * BLOCK_N
        rAcc, rSum, rMax, ahead = _attend(rAcc, rSum, rMax, ahead, rQ, gK, gV, gTable, first, whole, step, length, i_p, window, pages, scale_in,
                                          scale_out, k_m, k_s, v_m, v_s, stride_page, False, PAGE, WINDOW, CAPPED, BY_HAND, FULL, LIFT, D, BLOCK_D,
                                          BLOCK_N)  # fmt: skip
        masked = first + tl.cdiv(tl.maximum(whole - first, 0), step) * step if IN_TURN else tl.maximum(first, whole)
    rAcc, rSum, rMax, ahead = _attend(rAcc, rSum, rMax, ahead, rQ, gK, gV, gTable, masked, last, step, length, i_p, window, pages, scale_in, scale_out,
                                      k_m, k_s, v_m, v_s, stride_page, True, PAGE, WINDOW, CAPPED, BY_HAND, FULL, LIFT, D, BLOCK_D,
                                      BLOCK_N)  # fmt: skip
    if V_SCALE:
        rAcc *= tl.load(gVs + i_g * stride_vs)
    _leave(rAcc, tl.where(wrong, float("nan"), rSum), rMax - LIFT, gSinks, gOut, gLse, gPart, gPartMax, gPartSum, B, T, H, i_b, i_t, i_h, i_s, i_d, in_m,
           stride_sink, SINKS, WHOLE, FULL, UNIT, D)  # fmt: skip


@triton.jit
def _combine(gPart, gPartMax, gPartSum, gSinks, gOut, gLse, M, T, H, splits, stride_sink, SINKS: tl.constexpr, EARLY: tl.constexpr,
             UNIT: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """One row (b, t, h) a program: its splits in order, CHUNK of them asked for at once. The sums themselves are added: by way of each split's
    logarithm, float32 rounded at 2^3 for scores of any size and at 2^7 for scores of 100, a row would lose two bits and six."""
    FULL: tl.constexpr = gOut.dtype.element_ty == tl.float32
    i = tl.program_id(0).to(tl.int64)
    i_d = tl.arange(0, BLOCK_D)
    i_b, i_t, i_h = i // (tl.cast(T, tl.int64) * H), i // H % T, i % H
    most, rSum, rOut = float("-inf"), 0.0, tl.zeros([BLOCK_D], tl.float32)
    if EARLY:
        gdc_wait()
    for first in range(0, splits, CHUNK):
        j = first + tl.arange(0, CHUNK)
        at = j.to(tl.int64) * M + i
        rMax = tl.load(gPartMax + at, mask=j < splits, other=float("-inf"))
        rSums = tl.load(gPartSum + at, mask=j < splits, other=0.0)
        rPart = tl.load(gPart + at[:, None] * D + i_d[None, :], mask=(j < splits)[:, None] & (i_d < D)[None, :], other=0.0)
        new = tl.maximum(most, tl.max(rMax, 0))
        base = tl.where(new == float("-inf"), 0.0, new)
        shrink, rShare = _power(most - base, FULL), _power(rMax - base, FULL)
        rSum = rSum * shrink + tl.sum(rSums * rShare, 0)
        rOut = rOut * shrink + tl.sum(rShare[:, None] * rPart, 0)
        most = new
    if SINKS:
        most, rSum, shrink = _with_sink(most, rSum, tl.load(gSinks + i_h * stride_sink).to(tl.float32) * (1.0 / UNIT), FULL)
        rOut *= shrink
    rOut = rOut / tl.where(rSum == 0.0, 1.0, rSum)
    tl.store(gOut + i * D + i_d, rOut.to(gOut.dtype.element_ty), mask=i_d < D)
    tl.store(gLse + (i_b * H + i_h) * T + i_t, (most + _log(rSum, FULL)) * UNIT)


EARLY_KEYS = 1024  # of a share, for the second kernel to be launched while it is read: some 40 us
MOST, START, JOIN = 256, 1, 1.5  # splits; what a program's start and the second kernel cost, in the time that all programs take for a tile


@functools.lru_cache(maxsize=4096)
def splits_of(programs: int, tiles: int, slots: int) -> tuple[int, float]:
    """How many shares make the last program end soonest, and when: whole waves of slots, each with its start, and the joining where there is any. Of
    equal plans the one with the most shares, which leaves the fewest slots empty."""

    def cost(n: int) -> float:
        return cdiv(programs * n, slots) * (cdiv(tiles, n) + START) + (JOIN if n > 1 else 0)

    n = min(range(1, max(1, min(tiles, MOST)) + 1), key=lambda n: (cost(n), -n))
    return n, cost(n)


def _decode(by_hand, q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, config):
    b, t, h, d = q.shape
    (pages, page, g), paged = k_cache.shape[:3], block_table is not None
    q = q if q.stride(-1) == 1 or d == 1 else q.contiguous()
    out, lse = q.new_empty(b, t, h, d), q.new_empty(b, h, t, dtype=torch.float32)
    room = block_table.shape[1] * page if paged else page
    table, ks, vs = (lengths if x is None else x for x in (block_table, k_scale, v_scale))
    sink = q if sinks is None else sinks
    rows, block_n = t * h // g, config["BLOCK_N"]
    block_m = min(config["BLOCK_M"], max(16, power_of_2(rows)))
    tiles, seen = cdiv(rows, block_m), min(room, window + t - 1) if window else room
    key_tiles = cdiv(seen, block_n) + (1 if window else 0)
    if q.device.type == "cpu":  # interpreted: few keys, and yet splits
        splits = min(3, max(1, key_tiles))
    else:
        splits, _ = splits_of(b * g * tiles, key_tiles, config["programs"] * processors(q))
    # No older device launches a kernel before its turn, and Triton's own dispatch, which knows how to, is slow: a long share hides it.
    early = splits > 1 and config.get("early", False) and architecture(q) >= 90 and block_n * key_tiles >= EARLY_KEYS * splits
    part, part_max, part_sum = out, lse, lse
    if splits > 1:
        part = q.new_empty(splits, b, t, h, d, dtype=torch.float32)
        part_max, part_sum = (q.new_empty(splits, b, t, h, dtype=torch.float32) for _ in range(2))
    half = k_cache.itemsize == 1 and q.itemsize == 2 and not by_hand
    unit = 1.0 if q.dtype == torch.float32 else LN2
    scale_in, scale_out = (scale / softcap, softcap / unit) if softcap else (scale / unit, 1.0)
    both = {"EARLY": early, "UNIT": unit, "D": d, "BLOCK_D": power_of_2(d)}
    launch(_split, (b * g * splits * tiles,), q, k_cache, v_cache, lengths, table, sink, ks, vs, out, lse, part, part_max, part_sum, b, t, h, g,
           room, pages, splits, tiles, window, scale_in, scale_out, *q.stride()[:3], *k_cache.stride()[:3], *v_cache.stride()[:3],
           lengths.stride(0), table.stride(0), table.stride(-1), sink.stride(0), ks.stride(0), vs.stride(0), GROUP=h // g,
           PAGE=page if paged else 0, WINDOW=window > 0, CAPPED=softcap > 0, SINKS=sinks is not None, K_SCALE=k_scale is not None,
           V_SCALE=v_scale is not None, BY_HAND=by_hand, HALF=half, WHOLE=splits == 1, **both, BLOCK_M=block_m, BLOCK_N=block_n,
           num_warps=config["num_warps"], num_stages=config["num_stages"])  # fmt: skip
    if splits > 1:
        by, more = (launch_described, {"launch_pdl": True}) if early else (launch, {})  # Triton's own dispatch knows the option
        by(_combine, (b * t * h,), part, part_max, part_sum, sink, out, lse, b * t * h, t, h, splits, sink.stride(0), SINKS=sinks is not None,
           **both, CHUNK=min(64, power_of_2(splits)), num_warps=2, **more)  # fmt: skip
    return out, lse


def attention_decode(q, k_cache, v_cache, lengths, block_table, sinks, scale, window, softcap, *, config):
    return _decode(False, q, k_cache, v_cache, lengths, None, None, block_table, sinks, scale, window, softcap, config)


def _e4m3(q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, *, config):
    return _decode(False, q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, config)


def _by_hand(q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, *, config):
    return _decode(True, q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, config)


PAGE_KEYS = 256  # of a page or a tile, at most: their places in it are made in 32 bits, which spares registers


def _refuse(floats):
    def refuse(call):
        q = call["q"]
        if floats is not None and (q.dtype == torch.float32) != floats:
            return "16-bit tensors are for the tensor cores of the other kernel" if floats else "float32 is for triton.float32"
        for name in ("k_cache", "v_cache"):
            x = call[name]
            if x.stride(-1) != 1:
                return f"the last axis of {name} has stride {x.stride(-1)}; a copy of the cache would cost more than the attention"
        for name in ("q", "k_cache", "v_cache"):
            x = call[name]
            if min(x.shape[1], PAGE_KEYS) * x.stride(1) >= 1 << 31:
                return f"rows of {name} lie {x.stride(1)} elements apart, and it counts to {1 << 31} within a page or a tile"
        return off_gpu(q)

    return refuse


def _tiles(m, n, programs, warps, stages, early=False):
    """`programs` on each multiprocessor are to run at a time. `early`: the second kernel is launched while the first runs."""
    return {
        "BLOCK_M": m,
        "BLOCK_N": n,
        "programs": programs,
        "num_warps": warps,
        "num_stages": stages,
        **({"early": True} if early else {}),
    }


# 64 keys and values of 128 x 16 bits are 32 KiB, of which num_stages - 1 are held: one in use, the others under way. 4.2 TB/s over 132
# multiprocessors with 700 ns of latency want 22 KiB under way in each. Shares are planned for 128 keys at a time in a multiprocessor, by one, two or four
# programs; it has room for three of TWO (72 KiB).
ONE, TWO, FOUR = _tiles(64, 128, 1, 8, 3), _tiles(64, 64, 2, 4, 3, True), _tiles(64, 32, 4, 4, 3)
THREE_8, FOUR_8 = _tiles(64, 32, 3, 4, 4), _tiles(64, 32, 4, 4, 4)
ONE_WARPS_4 = _tiles(64, 128, 1, 4, 3)  # 32 rows are two warps' work beside each other, and eight warps make it four times over
CONFIGS = (TWO, ONE, FOUR, _tiles(64, 64, 2, 4, 3), _tiles(64, 64, 2, 4, 4), THREE_8, _tiles(64, 64, 3, 4, 3), FOUR_8,
           _tiles(64, 64, 2, 4, 4, True), _tiles(64, 64, 3, 4, 3, True), _tiles(64, 32, 4, 4, 4, True), _tiles(64, 128, 1, 8, 3, True),
           ONE_WARPS_4)  # fmt: skip
CONFIGS_WIDE = (_tiles(32, 32, 2, 4, 3), _tiles(32, 32, 2, 4, 4))  # 128 < D
CONFIGS_32 = (_tiles(16, 32, 2, 8, 2), _tiles(16, 16, 2, 8, 2), _tiles(16, 16, 2, 8, 1))


def _fuller(call, three):
    """Where there are programs for more than a wave without splits, whichever config leaves the last wave less empty: 512 programs are 1.29 waves of
    three a multiprocessor, of which the second reads with one program each, but 0.97 of four."""
    q, g = call["q"], call["k_cache"].shape[2]
    b, t, h, d = q.shape
    programs = b * g * cdiv(t * h // max(g, 1), 64)
    if d <= 64 or programs <= 3 * processors(q):
        return three
    return min((three, 3), (FOUR_8, 4), key=lambda c: cdiv(programs, c[1] * processors(q)) * c[1])[0]


def pick(call):
    """Whichever ends soonest by its own plan of shares: a program a multiprocessor needs none at (16, 8192), four fill the only wave of (64, 2048)."""
    q, cache, table = call["q"], call["k_cache"], call["block_table"]
    (b, t, h, d), (_, page, g) = q.shape, cache.shape[:3]
    if d > 128:
        return CONFIGS_WIDE[0]
    keys, rows = page if table is None else table.shape[1] * page, t * h // max(g, 1)
    offered = (TWO, FOUR) if d > 64 else (TWO,)
    if rows <= 32 and d > 64 and (table is None or page % 16 == 0):  # more queries, or a vector of pages a tile, hold it up
        offered = (TWO, ONE if rows <= 16 else ONE_WARPS_4, FOUR)

    def end(config):
        tiles = cdiv(keys, config["BLOCK_N"])
        return splits_of(b * g * cdiv(rows, 64), tiles, config["programs"] * processors(q))[1]

    return min(offered, key=end)


def pick_32(call):
    """Fused multiply-adds take whole rows of keys in registers: 32 rows of more than 64 numbers spill."""
    return CONFIGS_32[0] if call["q"].shape[-1] <= 64 else CONFIGS_32[1]


def pick_8_bits(call):
    """Tiles are half the bytes: more of them under way, of a size that needs no spills anywhere. With pages no fourth program has registers (138)."""
    q = call["q"]
    if q.dtype == torch.float32 or q.shape[-1] > 128:
        return pick_32(call) if q.dtype == torch.float32 else CONFIGS_WIDE[1]
    return THREE_8 if call["block_table"] is not None else _fuller(call, THREE_8)


SPILLS = Limits(spill_bytes=32)  # of four warps with 128 keys a step; what the first splits add to is asked for beside the maxima
WITHOUT_E4M3 = (80, 86, 87)
KERNELS = (
    Kernel(
        "triton", attention_decode, "keys split over the multiprocessors, added up in order", _refuse(False), CONFIGS, pick, limits=SPILLS
    ),
    Kernel("triton.float32", attention_decode, "true float32: fused multiply-adds, no tf32", _refuse(True), CONFIGS_32, pick_32),
)
KERNELS_E4M3 = (
    Kernel("triton", _e4m3, "the same with keys and values of 8 bits", _refuse(None), CONFIGS, pick_8_bits, architectures=WITH_E4M3),
    Kernel(
        "triton.by_hand", _by_hand, "8 bits widened by integer operations", _refuse(None), CONFIGS, pick_8_bits, architectures=WITHOUT_E4M3
    ),
)
