"""Transpose of the last two axes. Floor: 2 tensors through memory at 4274 GB/s, 4 bytes a bf16 element and 8 a float32 one; no arithmetic.

A tile is read along its rows and written along its columns, both in runs of 128 bytes or more; in between it turns in shared memory,
in the swizzled layout that Triton gives the change of lanes. The backward is the same kernel.
"""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import cdiv, launch, off_gpu


@triton.jit
def _transpose(gX, gOut, N, K, stride_b, stride_n, stride_k, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr):
    tiles_n, tiles_k = tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K)
    i_b = tl.program_id(0) // (tiles_n * tiles_k)
    i_tile = tl.program_id(0) % (tiles_n * tiles_k)
    # down GROUP tiles, then one to the right: neighbours in time share both the rows they read and the rows they write
    first = i_tile // (GROUP * tiles_k) * GROUP
    high = tl.minimum(tiles_n - first, GROUP)
    i_n = (first + i_tile % (GROUP * tiles_k) % high) * BLOCK_N + tl.arange(0, BLOCK_N)
    i_k = i_tile % (GROUP * tiles_k) // high * BLOCK_K + tl.arange(0, BLOCK_K)
    wide_b, wide_n, wide_k = i_b.to(tl.int64), i_n.to(tl.int64), i_k.to(tl.int64)
    in_n, in_k = i_n < N, i_k < K
    gX += wide_b * stride_b
    gOut += wide_b * N * K
    rX = tl.load(gX + wide_n[:, None] * stride_n + wide_k[None, :] * stride_k, mask=in_n[:, None] & in_k[None, :])
    tl.store(gOut + wide_k[:, None] * N + wide_n[None, :], tl.trans(rX), mask=in_k[:, None] & in_n[None, :])


def transpose(x, *, config):
    *batch, n, k = x.shape
    out = x.new_empty((*batch, k, n))
    if not x.numel():
        return out
    x = x.reshape(-1, n, k)  # a view where the leading axes collapse, whatever the strides of a matrix
    tiles = cdiv(n, config["block_n"]) * cdiv(k, config["block_k"])
    launch(_transpose, (x.shape[0] * tiles,), x, out, n, k, *x.stride(), BLOCK_N=config["block_n"], BLOCK_K=config["block_k"],
           GROUP=config["group"], num_warps=config["warps"])  # fmt: skip
    return out


def _pick(call):
    """128 bytes of a row on each side are one cache line; 64 KiB of tile would leave too few programs a multiprocessor."""
    (x,) = call.values()
    return _CONFIGS[0] if x.itemsize == 4 else _CONFIGS[1]


_CONFIGS = tuple(
    {"block_n": n, "block_k": k, "group": g, "warps": w}
    for g in (8, 1)
    for n, k, w in ((64, 64, 8), (128, 64, 8), (64, 64, 4), (64, 128, 8), (128, 128, 8), (32, 64, 4), (64, 32, 4))
)

FORWARD = (
    Kernel(
        "triton", transpose, "a tile turned in shared memory, whole lines on both sides", lambda call: off_gpu(call["x"]), _CONFIGS, _pick
    ),
)
BACKWARD = (Kernel("triton", transpose, "the same kernel", lambda call: off_gpu(call["dout"]), _CONFIGS, _pick),)
