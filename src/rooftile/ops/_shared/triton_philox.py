"""Philox4x32-7 for Triton kernels over rows: one call gives the words of 4 neighbours, about 11 integer operations an element."""

import triton
import triton.language as tl


@triton.jit
def _multiply(x, FACTOR: tl.constexpr):
    """Both halves of a 32 x 32 bit product; one instruction."""
    wide = x.to(tl.uint64) * tl.full([], FACTOR, tl.uint64)
    return (wide >> 32).to(tl.uint32), wide.to(tl.uint32)


@triton.jit
def philox(counter, seed):
    """Four words for each 64-bit counter under the 64-bit key."""
    a, b = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    c = tl.zeros_like(a)
    d = tl.zeros_like(a)
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(7):
        left_high, left_low = _multiply(a, 0xD2511F53)
        right_high, right_low = _multiply(c, 0xCD9E8D57)
        a = right_high ^ b ^ k0
        c = left_high ^ d ^ k1
        b, d = right_low, left_low
        k0 += tl.full([], 0x9E3779B9, tl.uint32)
        k1 += tl.full([], 0xBB67AE85, tl.uint32)
    return a, b, c, d


@triton.jit
def kept(first, gSeed, threshold, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, LANE: tl.constexpr):
    """Which of the elements first[i_m] + 0 .. BLOCK_N are kept, [ROWS, BLOCK_N]. LANE neighbours, those a lane loads at once, are drawn in
    one lane: 4, or 8 from two calls, where every `first` is a multiple of 4; else 1, a call for each element."""
    seed = tl.load(gSeed).to(tl.uint64)
    if LANE == 1:
        i = first[:, None] + tl.arange(0, BLOCK_N)[None, :]
        a, b, c, d = philox(i // 4, seed)
        word = tl.where(i % 4 < 2, tl.where(i % 4 == 0, a, b), tl.where(i % 4 == 2, c, d))
    else:
        counter = first[:, None] // 4 + LANE // 4 * tl.arange(0, BLOCK_N // LANE)[None, :]
        w0, w1, w2, w3 = philox(counter, seed)
        if LANE == 8:
            v0, v1, v2, v3 = philox(counter + 1, seed)
            w0, w1, w2, w3 = tl.join(w0, v0), tl.join(w1, v1), tl.join(w2, v2), tl.join(w3, v3)
        word = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [ROWS, BLOCK_N])  # the last axis joined is the nearest neighbour
    some = tl.cast(threshold, tl.int64) < 4294967296  # of 2^32, no 32-bit word, none is kept
    return (word >= tl.cast(threshold, tl.uint32)) & some
