"""LayerNorm over rows. Floor: 2 tensors through memory forward, 3 backward; about 8 and 14 operations an element, so bytes decide.

`triton` and `triton.columns` are those of `_shared/triton_norms.py`. add_layernorm is the same kernels: they read a second tensor, work on the
rounded sum and, backward, add dsum to dx. `triton.online` takes any length in two reads (Welford's statistics, one set a lane).
"""

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.launch import launch, rows
from rooftile.ops._shared.norms import (
    LAYER,
    MAX_ROW,
    MAX_ROW_BACKWARD,
    ONCE,
    ONLINE,
    PERSISTENT,
    Norm,
    any_length,
    dense,
    outputs,
    pick_forward,
    pick_persistent,
    upto,
)
from rooftile.ops._shared.triton_norms import affine, backward, forward


@triton.jit
def _forward_online(gX, gW, gB, gOut, gMean, gRstd, N, stride_x, eps, BLOCK_N: tl.constexpr):
    i_m = tl.program_id(0).to(tl.int64)
    i_lane = tl.arange(0, BLOCK_N)
    lane_mean = tl.zeros([BLOCK_N], tl.float32)
    lane_square = tl.zeros([BLOCK_N], tl.float32)  # sum of (x - lane_mean)²
    full = N // BLOCK_N
    for i in range(full):
        rX = tl.load(gX + i_m * stride_x + i * BLOCK_N + i_lane).to(tl.float32)
        rDelta = rX - lane_mean
        lane_mean += rDelta * (1.0 / (i + 1))
        lane_square += rDelta * (rX - lane_mean)
    i_n = full * BLOCK_N + i_lane  # the last, ragged tile: its lanes have seen one element more
    rX = tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=0.0).to(tl.float32)
    rDelta = tl.where(i_n < N, rX - lane_mean, 0.0)
    lane_mean += rDelta / (full + 1)
    lane_square += rDelta * tl.where(i_n < N, rX - lane_mean, 0.0)
    lane_count = full + (i_n < N).to(tl.float32)
    mean = tl.sum(lane_mean * lane_count, 0) / N
    apart = lane_mean - mean
    rstd = tl.rsqrt(tl.sum(lane_square + lane_count * apart * apart, 0) / N + eps)
    for start in range(0, N, BLOCK_N):
        i_n = start + i_lane
        rX = (tl.load(gX + i_m * stride_x + i_n, mask=i_n < N, other=0.0).to(tl.float32) - mean) * rstd
        rX = affine(rX, gW, gB, i_n, i_n < N, None)
        tl.store(gOut + i_m * N + i_n, rX.to(gOut.dtype.element_ty), mask=i_n < N)
    if gRstd is not None:
        tl.store(gMean + i_m, mean)
        tl.store(gRstd + i_m, rstd)


def layernorm(x, weight, bias, eps, *, config, save=True):
    out, _, mean, rstd = forward(x, None, weight, bias, eps, LAYER, config, save)
    return out, mean, rstd


def add_layernorm(x, residual, weight, bias, eps, x_bias, *, config, save=True):
    return forward(x, residual, weight, bias, eps, Norm(layer=True, x_bias=x_bias), config, save)


def layernorm_online(x, weight, bias, eps, *, config, save=True):
    out, _, mean, rstd = outputs(x, None, LAYER, save)
    x, m, n, stride = rows(x)
    launch(_forward_online, (m,), x, dense(weight), dense(bias), out, mean, rstd, n, stride, eps, BLOCK_N=config["block"],
           num_warps=config["warps"])  # fmt: skip
    return out, mean, rstd


def add_layernorm_online(x, residual, weight, bias, eps, x_bias, *, config, save=True):
    branch = x if x_bias is None else x.float() + x_bias
    total = torch.add(branch, residual, out=x.new_empty(x.shape, dtype=residual.dtype))
    out, mean, rstd = layernorm_online(total, weight, bias, eps, config=config, save=save)
    return out.to(x.dtype), total, mean, rstd


def layernorm_backward(dout, x, weight, bias, mean, rstd, *, config=None):
    return backward(dout, None, x, weight, bias, mean, rstd, LAYER, config)


def add_layernorm_backward(dout, dsum, sum, weight, bias, mean, rstd, x_bias, *, config=None):
    made = backward(dout, dsum, sum, weight, bias, mean, rstd, Norm(layer=True, x_bias=x_bias), config)
    return (*made, dout.new_empty(0)) if x_bias is None else made


FORWARD = (
    Kernel("triton", layernorm, "the row in registers: one read", upto(MAX_ROW), ONCE, pick_forward),
    Kernel("triton.online", layernorm_online, "Welford's statistics a lane: any length, two reads", any_length, ONLINE),
)
BACKWARD = (
    Kernel(
        "triton",
        layernorm_backward,
        "persistent: weight and partial gradients in registers",
        upto(MAX_ROW_BACKWARD),
        PERSISTENT,
        pick_persistent,
    ),
    Kernel("triton.columns", layernorm_backward, "row sums, then strips of columns: any length, two reads", any_length),
)

ADD_FORWARD = (
    Kernel("triton", add_layernorm, "the sum stays in registers: two reads, two writes", upto(MAX_ROW), ONCE, pick_forward),
    Kernel("triton.online", add_layernorm_online, "the addition in a pass of its own, then layernorm's: any length", any_length, ONLINE),
)
ADD_BACKWARD = (
    Kernel(
        "triton",
        add_layernorm_backward,
        "dsum joins dx where it is written; else as layernorm's",
        upto(MAX_ROW_BACKWARD),
        PERSISTENT,
        pick_persistent,
        Limits(spill_bytes_elsewhere=8),  # sm_100, 2 rows on 16 warps
    ),
    Kernel("triton.columns", add_layernorm_backward, "row sums, then strips of columns with dsum added: any length", any_length),
)
