"""Dropout by counter: 2 tensors through memory, and no mask in it. The mask is a function of (seed, element), so the backward draws it anew.

One Philox call gives 4 words, for 4 neighbouring elements: 7 rounds of 2 wide multiplications, about 11 integer operations an element
where a call for each element would need 60; at 4 bytes an element moved that is the difference between memory and arithmetic as the limit.
"""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu
from rooftile.ops._shared.philox import scale, threshold
from rooftile.ops._shared.policy import evict_last
from rooftile.ops._shared.triton_philox import kept


@triton.jit
def _dropout(gX, gSeed, gOut, N, threshold, scale, BLOCK: tl.constexpr, LANE: tl.constexpr, POLICY: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, 1)
    i = first[:, None] + tl.arange(0, BLOCK)[None, :]
    rX = tl.load(gX + i, mask=i < N, other=0.0, eviction_policy=POLICY).to(tl.float32)
    rOut = tl.where(kept(first, gSeed, threshold, 1, BLOCK, LANE), rX * scale, 0.0)
    tl.store(gOut + i, rOut.to(gOut.dtype.element_ty), mask=i < N)


def dropout(x, seed, p, *, config):
    out = x.new_empty(x.shape)
    x, n = x.contiguous(), x.numel()
    launch(_dropout, (cdiv(n, config["block"]),), x, seed, out, n, threshold(p), scale(p), BLOCK=config["block"],
           LANE=4 if x.itemsize == 4 else 8, POLICY=evict_last(x), num_warps=config["warps"])  # fmt: skip
    return out


_TILES = tuple({"block": b, "warps": w} for b, w in ((2048, 4), (4096, 4), (4096, 8), (1024, 4), (8192, 8), (2048, 8)))

FORWARD = (Kernel("triton", dropout, "one Philox call for four neighbours, no mask stored", lambda call: off_gpu(call["x"]), _TILES),)
BACKWARD = (Kernel("triton", dropout, "the same mask, drawn again", lambda call: off_gpu(call["dout"]), _TILES),)
