"""Variants of bias_mask_scale_add's Triton forward for few elements."""
import triton, triton.language as tl

@triton.jit
def base(gX, gBias, gMask, gResidual, gOut, M, N, strips, scale, stride_x, stride_mask, stride_residual,
             ROWS: tl.constexpr, BLOCK_N: tl.constexpr, POLICY: tl.constexpr):
    i_m = (tl.program_id(0) // strips).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i_n = tl.program_id(0) % strips * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (i_m < M)[:, None] & (i_n < N)[None, :]
    rX = tl.load(gX + i_m[:, None] * stride_x + i_n[None, :], mask=mask, eviction_policy=POLICY).to(tl.float32)
    rMask = tl.load(gMask + i_m[:, None] * stride_mask + i_n[None, :], mask=mask, other=0, eviction_policy=POLICY)
    rR = tl.load(gResidual + i_m[:, None] * stride_residual + i_n[None, :], mask=mask, eviction_policy=POLICY).to(tl.float32)
    rBias = tl.load(gBias + i_n, mask=i_n < N, other=0.0, eviction_policy="evict_last").to(tl.float32)
    rOut = tl.where(rMask != 0, (rX + rBias[None, :]) * scale, 0.0) + rR
    tl.store(gOut + i_m[:, None] * N + i_n[None, :], rOut.to(gOut.dtype.element_ty), mask=mask)

@triton.jit
def axes(gX, gBias, gMask, gResidual, gOut, M, N, scale, stride_x, stride_mask, stride_residual,
             ROWS: tl.constexpr, BLOCK_N: tl.constexpr, POLICY: tl.constexpr, LAST: tl.constexpr):
    """A grid of two axes: no division."""
    i_m = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (i_m < M)[:, None] & (i_n < N)[None, :]
    rX = tl.load(gX + i_m[:, None] * stride_x + i_n[None, :], mask=mask, eviction_policy=POLICY).to(tl.float32)
    rMask = tl.load(gMask + i_m[:, None] * stride_mask + i_n[None, :], mask=mask, other=0, eviction_policy=POLICY)
    rR = tl.load(gResidual + i_m[:, None] * stride_residual + i_n[None, :], mask=mask, eviction_policy=POLICY).to(tl.float32)
    rBias = tl.load(gBias + i_n, mask=i_n < N, other=0.0, eviction_policy=LAST).to(tl.float32)
    rOut = tl.where(rMask != 0, (rX + rBias[None, :]) * scale, 0.0) + rR
    tl.store(gOut + i_m[:, None] * N + i_n[None, :], rOut.to(gOut.dtype.element_ty), mask=mask)

@triton.jit
def flat(gX, gBias, gMask, gResidual, gOut, count, scale, N: tl.constexpr, BLOCK: tl.constexpr):
    """Dense tensors as one row, as torch.compile has it: the bias at the remainder by a constant."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < count
    rX = tl.load(gX + i, mask=mask).to(tl.float32)
    rMask = tl.load(gMask + i, mask=mask, other=0)
    rR = tl.load(gResidual + i, mask=mask).to(tl.float32)
    rBias = tl.load(gBias + i % N, mask=mask).to(tl.float32)
    rOut = tl.where(rMask != 0, (rX + rBias) * scale, 0.0) + rR
    tl.store(gOut + i, rOut.to(gOut.dtype.element_ty), mask=mask)

@triton.jit
def bare(gX, gBias, gMask, gResidual, gOut, scale, N: tl.constexpr, BLOCK: tl.constexpr):
    """flat, of whole blocks: no mask."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rX = tl.load(gX + i).to(tl.float32)
    rMask = tl.load(gMask + i)
    rR = tl.load(gResidual + i).to(tl.float32)
    rBias = tl.load(gBias + i % N).to(tl.float32)
    rOut = tl.where(rMask != 0, (rX + rBias) * scale, 0.0) + rR
    tl.store(gOut + i, rOut.to(gOut.dtype.element_ty))
