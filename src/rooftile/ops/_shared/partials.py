"""Partial rows added up in one order: the last step of a parameter's gradient without atomics."""

import triton
import triton.language as tl

from rooftile.ops._shared.launch import cdiv, launch


@triton.jit
def _add_rows(gPartial, gOut, P, N, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    i_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rSum = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    for start in range(0, P, BLOCK_P):
        i_p = start + tl.arange(0, BLOCK_P)
        mask = (i_p < P)[:, None] & (i_n < N)[None, :]
        rSum += tl.load(gPartial + i_p.to(tl.int64)[:, None] * N + i_n[None, :], mask=mask, other=0.0)
    tl.store(gOut + i_n, tl.sum(rSum, 0).to(gOut.dtype.element_ty), mask=i_n < N)


def add_rows(partial, out):
    """out[N] = the sum over the rows of partial [P, N], float32. 16 columns a program: enough programs to fill the device, 64 bytes a row."""
    p, n = partial.shape
    launch(_add_rows, (cdiv(n, 16),), partial, out, p, n, BLOCK_P=128, BLOCK_N=16, num_warps=4)
