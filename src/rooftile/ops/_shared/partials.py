"""Partial rows added up in one order: the last step of a parameter's gradient without atomics."""

import triton
import triton.language as tl

from rooftile.ops._shared.launch import cdiv, launch, parts, power_of_2


@triton.jit
def _add_rows(gPartial, gFirst, gSecond, P, N, WHICH: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    which = tl.program_id(1) + WHICH
    i_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rSum = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    for start in range(0, P, BLOCK_P):
        i_p = start + tl.arange(0, BLOCK_P)
        mask = (i_p < P)[:, None] & (i_n < N)[None, :]
        rSum += tl.load(gPartial + (which * P + i_p).to(tl.int64)[:, None] * N + i_n[None, :], mask=mask, other=0.0)
    rTotal = tl.sum(rSum, 0)
    if which == 0:
        tl.store(gFirst + i_n, rTotal.to(gFirst.dtype.element_ty), mask=i_n < N)
    else:
        tl.store(gSecond + i_n, rTotal.to(gSecond.dtype.element_ty), mask=i_n < N)


def add_rows(partial, first, second=None):
    """first[N] = the sum over the rows of partial [P, N], float32; with a second, partial is [2 P, N], and of two an empty one is left out.
    16 columns a program: enough programs to fill the device, 64 bytes a row; up to 512 rows asked for at once, so that P = 528 is two rounds."""
    p, n, which, halves, other = parts(partial, first, second)
    block = min(512, max(64, power_of_2(p)))
    launch(
        _add_rows, (cdiv(n, 16), halves), partial, first, other, p, n, WHICH=which, BLOCK_P=block, BLOCK_N=16, num_warps=max(4, block // 32)
    )
