"""Rotary embedding of a tile of heads, for the Triton kernels that turn what they move."""

import triton
import triton.language as tl


@triton.jit
def turn_heads(gX, gOut, rFrom, rTo, in_t, i_h, in_h, stride_h, stride_out_h, rCos, rSin, N, D: tl.constexpr, REST: tl.constexpr,
          INTERLEAVED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr):  # fmt: skip
    """Heads i_h of some tokens, whose places are rFrom and rTo: [tokens, heads, pairs]."""
    rFrom = rFrom[:, None] + (i_h * stride_h)[None, :]
    rTo = rTo[:, None] + (i_h * stride_out_h)[None, :]
    inside = in_t[:, None] & in_h[None, :]
    i_n = tl.arange(0, BLOCK_N)
    if INTERLEAVED:
        i_d = 2 * i_n[:, None] + tl.arange(0, 2)[None, :]
        mask = inside[:, :, None, None] & (i_d < 2 * N)[None, None, :, :]
        rA, rB = tl.split(tl.load(gX + rFrom[:, :, None, None] + i_d[None, None, :, :], mask=mask, other=0.0).to(tl.float32))
        rOut = tl.join(rA * rCos - rB * rSin, rA * rSin + rB * rCos)
        tl.store(gOut + rTo[:, :, None, None] + i_d[None, None, :, :], rOut.to(gOut.dtype.element_ty), mask=mask)
    else:
        mask = inside[:, :, None] & (i_n < N)[None, None, :]
        gA = gX + rFrom[:, :, None] + i_n[None, None, :]
        rA = tl.load(gA, mask=mask, other=0.0).to(tl.float32)
        rB = tl.load(gA + N, mask=mask, other=0.0).to(tl.float32)
        gTo = gOut + rTo[:, :, None] + i_n[None, None, :]
        tl.store(gTo, (rA * rCos - rB * rSin).to(gOut.dtype.element_ty), mask=mask)
        tl.store(gTo + N, (rA * rSin + rB * rCos).to(gOut.dtype.element_ty), mask=mask)
    if REST:
        i_d = 2 * N + tl.arange(0, BLOCK_R)
        mask = inside[:, :, None] & (i_d < D)[None, None, :]
        rX = tl.load(gX + rFrom[:, :, None] + i_d[None, None, :], mask=mask)
        tl.store(gOut + rTo[:, :, None] + i_d[None, None, :], rX, mask=mask)
