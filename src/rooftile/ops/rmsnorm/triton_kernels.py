"""RMSNorm over rows. Floor: 2 tensors through memory forward (4 bytes a bf16 element), 3 backward (6 bytes); 4 and 9 operations an
element. At 4274 GB/s a byte takes the time of about 15 float32 operations: bytes decide, by a factor of 10.

`triton` and `triton.columns` are those of `_shared/triton_norms.py`. add_rmsnorm is the same kernels: they read a second tensor, work on the
rounded sum and, backward, add dsum to dx. `triton.online` takes any length in two reads, with a sum of squares a lane.
"""

import triton
import triton.language as tl

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.launch import launch, rows
from rooftile.ops._shared.norms import (
    MAX_ROW,
    MAX_ROW_BACKWARD,
    ONCE,
    ONLINE,
    PERSISTENT,
    RMS,
    Norm,
    any_length,
    dense,
    outputs,
    pick_forward,
    pick_persistent,
    upto,
)
from rooftile.ops._shared.triton_norms import affine, backward, beside, forward


@triton.jit
def _forward_online(gX, gR, gW, gSum, gOut, gRstd, N, stride_x, stride_r, eps, offset, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64)
    lane_square = tl.zeros([BLOCK_N], tl.float32)  # the lanes meet once, after the row
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        if gR is not None:
            rX += tl.load(gR + i_m * stride_r + i_n, mask=i_n < N, other=0.0).to(tl.float32)
            rX = rX.to(gSum.dtype.element_ty).to(tl.float32)
        lane_square += rX * rX
    rstd = tl.rsqrt(tl.sum(lane_square, 0) / N + eps)
    for start in range(0, N, BLOCK_N):
        i_n = start + tl.arange(0, BLOCK_N)
        rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=0.0).to(tl.float32)
        if gR is not None:
            rX += tl.load(gR + i_m * stride_r + i_n, mask=i_n < N, other=0.0).to(tl.float32)
            rSum = rX.to(gSum.dtype.element_ty)
            tl.store(gSum + i_m * N + i_n, rSum, mask=i_n < N)
            rX = rSum.to(tl.float32)
        rX = affine(rX * rstd, gW, None, i_n, i_n < N, offset)
        tl.store(gOut + i_m * N + i_n, rX.to(gOut.dtype.element_ty), mask=i_n < N)
    if gRstd is not None:
        tl.store(gRstd + i_m, rstd)


def _twice(x, residual, weight, eps, offset, config, save):
    out, total, _, rstd = outputs(x, residual, RMS, save)
    x, m, n, stride = rows(x)
    residual, stride_r = beside(residual)
    launch(_forward_online, (m,), x, residual, dense(weight), total, out, rstd, n, stride, stride_r, eps, offset, BLOCK_N=config["block"],
           num_warps=config["warps"])  # fmt: skip
    return out, total, rstd


def rmsnorm(x, weight, eps, offset, *, config, save=True):
    out, _, _, rstd = forward(x, None, weight, None, eps, Norm(False, offset), config, save)
    return out, rstd


def rmsnorm_online(x, weight, eps, offset, *, config, save=True):
    out, _, rstd = _twice(x, None, weight, eps, offset, config, save)
    return out, rstd


def add_rmsnorm(x, residual, weight, eps, offset, *, config, save=True):
    out, total, _, rstd = forward(x, residual, weight, None, eps, Norm(False, offset), config, save)
    return out, total, rstd


def add_rmsnorm_online(x, residual, weight, eps, offset, *, config, save=True):
    return _twice(x, residual, weight, eps, offset, config, save)


def rmsnorm_backward(dout, x, weight, rstd, offset, *, config=None):
    return backward(dout, None, x, weight, None, None, rstd, Norm(False, offset), config)[:2]


def add_rmsnorm_backward(dout, dsum, sum, weight, rstd, offset, *, config=None):
    return backward(dout, dsum, sum, weight, None, None, rstd, Norm(False, offset), config)[:2]


def pick_backward(call):
    """32 elements a lane of short rows; 16 where dsum is a third tensor, which else spills on sm_80."""
    return pick_persistent(call, short=512 if "dsum" in call else 1024)


FORWARD = (
    Kernel("triton", rmsnorm, "the row in registers: one read", upto(MAX_ROW), ONCE, pick_forward),
    Kernel("triton.online", rmsnorm_online, "a sum of squares a lane: any length, two reads", any_length, ONLINE),
)
BACKWARD = (
    Kernel("triton", rmsnorm_backward, "persistent: weight and partial gradient in registers", upto(MAX_ROW_BACKWARD), PERSISTENT,
           pick_backward),
    Kernel("triton.columns", rmsnorm_backward, "row sums, then strips of columns: any length, two reads", any_length),
)  # fmt: skip

ADD_FORWARD = (
    Kernel("triton", add_rmsnorm, "the sum stays in registers: two reads, two writes", upto(MAX_ROW), ONCE, pick_forward),
    Kernel(
        "triton.online",
        add_rmsnorm_online,
        "the addition done in both reads: any length, four reads",
        any_length,
        ONLINE,
        limits=Limits(spill_bytes_elsewhere=8),
    ),  # sm_100 wants 40 registers for 3 blocks of 16 warps, and parks two
)
ADD_BACKWARD = (
    Kernel("triton", add_rmsnorm_backward, "dsum joins dx where it is written; else as rmsnorm's", upto(MAX_ROW_BACKWARD), PERSISTENT,
           pick_backward),
    Kernel("triton.columns", add_rmsnorm_backward, "row sums, then strips of columns with dsum added: any length", any_length),
)  # fmt: skip
