"""Dropout by counter: 2 tensors through memory, and no mask in it. The mask is a function of (seed, element), so the backward draws it anew.

One Philox call gives 4 words, for 4 neighbouring elements: 10 rounds of 2 wide multiplications, about 15 integer operations an element
where a call for each element would need 60; at 4 bytes an element moved that is the difference between memory and arithmetic as the limit.
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu
from rooftile.ops.dropout.reference import threshold


@triton.jit
def _multiply(x, FACTOR: tl.constexpr):
    """Both halves of a 32 x 32 bit product; one instruction."""
    wide = x.to(tl.uint64) * tl.full([], FACTOR, tl.uint64)
    return (wide >> 32).to(tl.uint32), wide.to(tl.uint32)


@triton.jit
def _philox(low, high, seed):
    """Philox4x32-10 of the 64-bit counter (high, low) under the 64-bit key: four words a counter."""
    a, b = low, high
    c = tl.zeros_like(low)
    d = tl.zeros_like(low)
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        left_high, left_low = _multiply(a, 0xD2511F53)
        right_high, right_low = _multiply(c, 0xCD9E8D57)
        a = right_high ^ b ^ k0
        c = left_high ^ d ^ k1
        b, d = right_low, left_low
        k0 += tl.full([], 0x9E3779B9, tl.uint32)
        k1 += tl.full([], 0xBB67AE85, tl.uint32)
    return a, b, c, d


@triton.jit
def _words(start, seed, BLOCK: tl.constexpr, LANE: tl.constexpr):
    """The random words of elements start .. start + BLOCK. LANE neighbours, those it loads at once, are drawn in one lane: 4, or 8 from
    two calls; so no word has to cross lanes through shared memory."""
    if LANE == 4:
        counter = start // 4 + tl.arange(0, BLOCK // 4)
        w0, w1, w2, w3 = _philox(counter.to(tl.uint32), (counter >> 32).to(tl.uint32), seed)
    else:
        counter = start // 4 + 2 * tl.arange(0, BLOCK // 8)
        high = (counter >> 32).to(tl.uint32)  # of both: the second counter is odd and carries nothing
        a0, a1, a2, a3 = _philox(counter.to(tl.uint32), high, seed)
        b0, b1, b2, b3 = _philox((counter + 1).to(tl.uint32), high, seed)
        w0, w1, w2, w3 = tl.join(a0, b0), tl.join(a1, b1), tl.join(a2, b2), tl.join(a3, b3)
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [BLOCK])  # the last axis joined is the nearest neighbour


@triton.jit
def _dropout(gX, gSeed, gOut, N, threshold, scale, BLOCK: tl.constexpr, LANE: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    i = start + tl.arange(0, BLOCK)
    rX = tl.load(gX + i, mask=i < N, other=0.0, eviction_policy="evict_first").to(tl.float32)
    rWord = _words(start, tl.load(gSeed).to(tl.uint64), BLOCK, LANE)
    rOut = tl.where(rWord >= tl.cast(threshold, tl.uint32), rX * scale, 0.0)
    tl.store(gOut + i, rOut.to(gOut.dtype.element_ty), mask=i < N, eviction_policy="evict_first")


def dropout(x, seed, p, *, config):
    if p == 1:  # the threshold would be 2^32, which is no 32-bit word
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    out = x.new_empty(x.shape)
    x, n = x.contiguous(), x.numel()
    launch(_dropout, (cdiv(n, config["block"]),), x, seed, out, n, threshold(p), 1 / (1 - p), BLOCK=config["block"],
           LANE=4 if x.itemsize == 4 else 8, num_warps=config["warps"])  # fmt: skip
    return out


_TILES = tuple({"block": b, "warps": w} for b, w in ((2048, 4), (4096, 4), (4096, 8), (1024, 4), (8192, 8), (2048, 8)))

FORWARD = (Kernel("triton", dropout, "one Philox call for four neighbours, no mask stored", lambda call: off_gpu(call["x"]), _TILES),)
BACKWARD = (Kernel("triton", dropout, "the same mask, drawn again", lambda call: off_gpu(call["dout"]), _TILES),)
