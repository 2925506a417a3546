"""Attention's gradient for Hopper in CUDA C++."""

from typing import NamedTuple

import torch
from torch import Tensor

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.cuda.tensor_map import TensorMap
from rooftile.ops._shared.launch import cdiv, resident
from rooftile.ops.attention.masks import bits, distinct
from rooftile.ops.attention.refusals import for_the_copy_engine, too_small, wider_values

V5, BITS = (Source.beside(__file__, f"{name}.cu") for name in ("v5_hopper_backward", "mask_bits"))
LOG2E = 1.4426950408889634
KEYS = 128  # of a block
LEAD, WAVE = 224, 128  # tiles: not quite two for each multiprocessor, and not quite one
L2 = 24 << 20  # bytes: half of it, as either half keeps what the multiprocessors at the other one asked for
LONG = 8192  # queries: of so many, causal, few blocks are cut by the mask


def queries(d, causal, ordered, t):
    """Of a step. 80 where they divide T about as well as 64, as what lies past T in the last block is computed too, and the mask cuts few blocks;
    masked and in turn they would spill."""
    fit = 32 * 80 * cdiv(t, 80) <= 33 * 64 * cdiv(t, 64)
    return 80 if d == 128 and fit and (not causal or (t >= LONG and not ordered)) else 8192 // d


def shared_bytes(d, m=None):
    """Bytes of dynamic shared memory (struct Tile): keys, values, two stages of q and dout, three of dS, or two, one of dq, rows of lse and delta."""
    m = m or 8192 // d
    return (2 * KEYS + 4 * m) * d * 2 + (2 if m == 80 else 3) * m * KEYS * 2 + m * d * 4 + 4 * m * 4


def walked(most, group, tiles):
    """Of the `group` heads that share a tile of keys, how many one walk goes through, causal and not in turn; there are `tiles` walks where each goes through
    one. Tiles begin at different blocks of queries, so that with each head they come to the same block further apart, and soon it has left the L2 between one
    tile and the next, and its dq with it. Few walks are the longest's loss too: then each goes through fewer heads still. dk and dv of several walks are
    sums in memory, which D = 64, whose walks have half the steps, feels sooner."""
    return max(n for n in range(1, group + 1) if group % n == 0 and n <= max(1, min(most, tiles // LEAD)))


def heads_at_once(d, t):
    """Causal: so many as the L2 holds, with q and dout in 16 bits, keys and values as long as they, and dq in float32, but no more than makes a wave of
    tiles at T = 1024. Of heads so long that it does not hold four, 16: their last tiles are short."""
    fit = L2 // (12 * t * d)
    return min(fit, d // 8) if fit >= 4 else 16


class Dealt(NamedTuple):
    """Of walks over tiles, by heads of keys: how many are dealt out together, how many before its own a tile rounds dq of, how many behind its own it clears
    dq's sums of, and how many of a head's tiles do that."""

    together: int
    back: int
    ahead: int
    clearing: int


def dealt(by_turns, group, tiles, heads, near):
    """Where tiles go by turns, the longest first, the last ones are short; head by head the last may be as long as the first. Some `heads` of queries at
    once: of fewer, more tiles add to the same dq at a time; of more, its sums leave the L2 before the next tile adds to them. What is rounded was
    begun LEAD tiles before at least, which is long enough for nobody to wait. `near`: zeros stay in the L2 until they are added to where there is only a
    WAVE between; by turns a head's first tiles clear then, which begin before the others, and they are through in time where its sums are few."""
    if not by_turns:
        return Dealt(1, cdiv(LEAD, tiles) + 1, cdiv(WAVE, tiles) + 1, tiles)
    together = max(2, heads // group)
    far = together * cdiv(LEAD, together * tiles)
    if not near or together * tiles >= LEAD:
        return Dealt(together, far, far, tiles)
    ahead = together * cdiv(WAVE, together * tiles)
    return Dealt(together, ahead + together, ahead, max(1, tiles // 4))


def sums_of_keys(k, tiles):
    """Of dk and dv, where several walks add to a tile."""
    return k.new_zeros(2, tiles * k.shape[2] * KEYS * k.shape[3], dtype=torch.float32)


def finish_keys(dk, dv, key_sums, scale, spans, of_tile, most, ragged="false"):
    """dk and dv of their sums; of packed sequences where `order` has found them, past `most` keys of one NaN."""
    s, g, d = dk.shape[1:]
    tiles = key_sums.shape[1] // (g * KEYS * d)
    launch(V5, f"finish_keys<{CTYPE[dk.dtype]}, {d}, {ragged}>", (tiles * g * 2, 2), 4 * d, dk, dv, *key_sums, spans, of_tile, g, s, most,
           *dk.stride()[:3], *dv.stride()[:3], scale)  # fmt: skip


class Window(NamedTuple):
    """What a query sees, from `left` keys before its own to `right` behind it (-1: all there are), what its scores are capped at (0: nothing), the
    gradient of lse, and which of those keys a mask [B, H, T, S] leaves it."""

    left: int
    right: int
    softcap: float
    dlse: Tensor
    mask: Tensor | None = None


def packed_bits(mask, m, left, right):
    """Of a mask [B, H, T, S], for steps of m queries, in a window."""
    b, h = distinct(mask)
    t, s = mask.shape[2:]
    across, tiles = cdiv(t, 128), cdiv(s, KEYS)
    words, spans, any_set = (mask.new_empty(b * h * tiles, *shape, dtype=torch.int32) for shape in ((2, across, 128, 2), (2,), (across,)))
    wide = mask.stride(3) == 1 and all(x % 16 == 0 for x in (s, mask.data_ptr(), *mask.stride()[:3]))
    launch(BITS, f"pack_bits<{str(wide).lower()}>", any_set.numel(), 256, words, any_set, mask.view(torch.uint8), h, t, s, *mask.stride())
    launch(BITS, f"span_bits<{m}>", cdiv(b * h * tiles, 4), 128, spans, any_set, t, s, tiles, b * h * tiles, left, right)
    return bits(words, spans, b, h)


def backward(ordered, m, dout, q, k, v, out, lse, causal, scale, into=None, turned=None, window=None):
    """m: queries of a step. turned: by which cosines and sines q and k were, for dq and dk to be turned back; as `turns_back` says. causal: whether a
    walk begins later for each tile, and none ends before the last query; a window may be so too."""
    (b, t, h, d), (s, g) = q.shape, k.shape[1:3]
    dq, dk, dv = into or (x.new_empty(x.shape) for x in (q, k, v))
    lse = lse.contiguous()
    walk, tiles = cdiv(t, m), cdiv(s, KEYS)  # blocks of queries of a head, and of keys
    masked, bounds = None, () if window is None else tuple(t + s if x < 0 else min(x, t + s) for x in window[:2])
    if window and window.mask is not None:
        masked = packed_bits(window.mask, m, *bounds)
    group = walked(256 // d, h // g, tiles * b * h) if causal and not ordered and not turned else h // g
    if masked and masked.of_head:
        group = 1  # a walk through several heads reads one mask
    walks = h // g // group  # of a tile
    blocks, all_walks = walk * b * h, tiles * b * g * walks
    sums = q.new_empty(blocks, 2, m * d // 2, dtype=torch.float32)
    turn = q.new_empty(blocks, 2, dtype=torch.int32)
    counts = q.new_empty(1 + 2 * b * h, dtype=torch.int32)  # tiles taken, additions to each head, and tiles that have cleared some of it
    rows = q.new_empty(blocks, 2, m, dtype=torch.float32)  # lse to base 2 and delta of each block of queries
    key_sums = sums_of_keys(k, b * tiles) if walks > 1 else (rows, rows)
    kind, flags, and_turned = f"{CTYPE[q.dtype]}, {d}", f"{str(causal).lower()}, {str(ordered).lower()}", ", true" if turned else ""
    and_queries, last = (f", {m}", f", false, {m}") if m != 8192 // d else ("", and_turned)
    and_summed = "" if walks == 1 else f", false, {m}, true"
    tables = turned or (rows, rows)
    instance, factor, rest = f"attention_backward<{kind}, {flags}{and_summed or last}>", scale, tables
    if window is not None:
        cap = window.softcap
        flags = f"{str(ordered).lower()}, {m}, {str(walks > 1).lower()}, {str(cap > 0).lower()}, {str(masked is not None).lower()}"
        instance, factor = f"attention_backward_windowed<{kind}, {flags}>", 2 * scale / cap if cap else scale
        rest = (cap * LOG2E, *bounds, *(masked or (rows, rows, 0, 0)))
        and_queries = f", {m}, true"
    # 8 heads in a window, where sums are wanted for longer
    deal = dealt((causal or window is not None) and not ordered, group, tiles, 8 if window else heads_at_once(d, t), d == 64 and not window)
    # heads: the first, and the last, as nobody comes before and behind them who would
    cleared, left = (min(x * group, b * h) for x in (deal.ahead, deal.back))
    launch(V5, f"prepare<{kind}{and_queries}>", blocks * m * d // 2048, 256, sums, turn, counts, rows, dout, out, lse,
           window.dlse.contiguous() if window else lse, cleared, b * h, h, t, *dout.stride()[:3], *out.stride()[:3])  # fmt: skip
    maps = [TensorMap(x, (1, 64, 1, 64), 128) for x in (dk, dv)]
    maps += [TensorMap(x, (1, n, 1, 64), 128) for x, n in ((q, m), (k, KEYS), (v, KEYS), (dout, m))]
    left = (left if causal or window or d == 128 else b * h) * walk  # blocks of queries; Plain::ROUNDS
    launch(V5, instance, min(all_walks, resident(q, 1)), 384, *maps, dq, sums, *key_sums, turn, counts, rows, g, walks, group, t, s, walk, tiles,
           deal.together, all_walks, b * h, deal.back * group, deal.ahead * group, deal.clearing, *dq.stride()[:3], scale, factor * LOG2E, *rest,
           shared=shared_bytes(d, m))  # fmt: skip
    launch(V5, f"finish<{kind}{last}>", left * 2, m * d // 64, dq, sums, (blocks - left) * 2, h, t, *dq.stride()[:3], scale, *tables)
    if walks > 1:
        finish_keys(dk, dv, key_sums, scale, turn, turn, s)
    return dq, dk, dv


def turns_back(d, cos, sin, positions, interleaved):
    """Whether the kernel can: whole heads of 64, half and half, tables of float32, a token its own row."""
    plain = all(t.dtype == torch.float32 and t.is_contiguous() and t.data_ptr() % 16 == 0 for t in (cos, sin))
    return d == 64 == 2 * cos.shape[1] and positions is None and not interleaved and plain


def _queries(ordered, q, causal):
    return queries(q.shape[3], causal, ordered, q.shape[1])


def hopper(dout, q, k, v, out, lse, causal, scale, *, into=None, turned=None):
    return backward(False, _queries(False, q, causal), dout, q, k, v, out, lse, causal, scale, into, turned)


def hopper_ordered(dout, q, k, v, out, lse, causal, scale, *, into=None, turned=None):
    return backward(True, _queries(True, q, causal), dout, q, k, v, out, lse, causal, scale, into, turned)


def _refuse(call):
    d = call["q"].shape[-1]
    if d not in (64, 128):
        return f"D={d}, it is written for 64 and 128"
    return wider_values(call) or for_the_copy_engine(call) or off_gpu(call["q"])


LIMITS = Limits(registers=168, shared_bytes=227 * 1024)
BACKWARD = (
    Kernel(
        "cuda.v5_hopper",
        hopper,
        "five products by wgmma, dq added by the copy engine",
        _refuse,
        limits=LIMITS,
        architectures=(90,),
        sources=(V5,),
        varies="dq is summed by atomics",
        declines=too_small,
    ),
    Kernel(
        "cuda.v5_hopper_ordered",
        hopper_ordered,
        "the same, tiles of keys add to dq in turn",
        _refuse,
        limits=LIMITS,
        architectures=(90,),
        sources=(V5,),
        declines=too_small,
    ),
)
