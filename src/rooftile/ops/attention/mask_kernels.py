"""A mask's bytes as bits that lie where wgmma's threads hold scores, so that a tile's come by one load of two words a thread."""

import triton
import triton.language as tl


@triton.jit
def pack_bits(gBits, gAny, gMask, H, T, S, down, across, stride_b, stride_h, stride_t, stride_s):
    """[B, H, T, S] bytes -> [B, H, down, across, 128 threads, 2] words: of 64 queries by 128 keys a thread's two are for its queries 8 apart, and bit
    2 j + e is for key 8 j + 2 c + e, where c is its lane of the quad. Of queries and keys that are not there they are zeros. gAny: whether
    any of a program's is set."""
    i = tl.program_id(0).to(tl.int64)
    i_bh = i // (down * across)
    i_t = (i // across % down).to(tl.int32) * 64 + tl.arange(0, 64)
    i_s = (i % across).to(tl.int32) * 128 + tl.arange(0, 128)
    gMine = gMask + i_bh // H * stride_b + i_bh % H * stride_h
    there = (i_t < T)[:, None] & (i_s < S)[None, :]
    rMask = tl.load(gMine + i_t.to(tl.int64)[:, None] * stride_t + i_s.to(tl.int64)[None, :] * stride_s, mask=there, other=0)
    rMask = tl.reshape((rMask != 0).to(tl.int32), [64, 16, 4, 2])
    bit = 2 * tl.arange(0, 16)[None, :, None, None] + tl.arange(0, 2)[None, None, None, :]
    rBits = tl.sum(tl.sum(rMask << bit, 3), 1)
    row = tl.arange(0, 64)[:, None]
    at = (row // 16 * 8 + row % 8) * 8 + tl.arange(0, 4)[None, :] * 2 + row // 8 % 2
    tl.store(gBits + i * 256 + at, rBits)
    tl.store(gAny + i, (tl.max(tl.max(rBits.to(tl.uint32), 1), 0) != 0).to(tl.int32))


@triton.jit
def span_bits(gSpans, gAny, across, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Of a tile of queries, ROWS rows of what `pack_bits` says of 128 keys each, the first key that any may see and one behind the last; none: 0, 0."""
    i = tl.program_id(0).to(tl.int64)
    first = across
    end = 0
    for start in range(0, across, BLOCK):
        i_n = start + tl.arange(0, BLOCK)
        there = i_n < across
        any_set = tl.zeros([BLOCK], tl.int32)
        for r in tl.static_range(ROWS):
            any_set |= tl.load(gAny + (i * ROWS + r) * across + i_n, mask=there, other=0)
        first = tl.minimum(first, tl.min(tl.where(any_set != 0, i_n, across)))
        end = tl.maximum(end, tl.max(tl.where(any_set != 0, i_n + 1, 0)))
    tl.store(gSpans + i * 2, tl.where(end == 0, 0, first) * 128)
    tl.store(gSpans + i * 2 + 1, end * 128)
