"""out = a b + bias with float32 accumulation. Floor: 2 M N K operations; bytes only where M or N is small.

One program a tile of the output. Any strides, through pointers: a b that is weight.t() is read as it lies. The gradients are
the same kernel with strides swapped.
"""

import inspect

import torch
import triton
import triton.language as tl

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.column_sum import column_sum
from rooftile.ops._shared.launch import cdiv, launch, off_gpu
from rooftile.ops.gemm.reference import flat


@triton.jit
def _gemm(gA, gB, gBias, gOut, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, HAS_BIAS: tl.constexpr, EVEN_K: tl.constexpr,
          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):  # fmt: skip
    # Programs run down GROUP_M tiles before they step right, so that a wave of them shares tiles of a and b in the L2.
    program = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = program // (GROUP_M * tiles_n) * GROUP_M
    height = min(tiles_m - first, GROUP_M)
    inside = program % (GROUP_M * tiles_n)
    i_m = (first + inside % height).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    i_n = (inside // height).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    i_k = tl.arange(0, BLOCK_K).to(tl.int64)
    at_a = gA + i_m * stride_am + i_k[None, :] * stride_ak
    at_b = gB + i_k[:, None] * stride_bk + i_n * stride_bn
    step = tl.full([], BLOCK_K, tl.int64)
    rAcc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            rA = tl.load(at_a, mask=i_m < M, other=0.0)
            rB = tl.load(at_b, mask=i_n < N, other=0.0)
        else:
            rA = tl.load(at_a, mask=(i_m < M) & (i_k[None, :] < K - start), other=0.0)
            rB = tl.load(at_b, mask=(i_k[:, None] < K - start) & (i_n < N), other=0.0)
        rAcc = tl.dot(rA, rB, rAcc, input_precision="ieee")  # tf32 would keep 10 bits of a float32
        at_a += step * stride_ak
        at_b += step * stride_bk
    if HAS_BIAS:
        rAcc += tl.load(gBias + i_n, mask=i_n < N, other=0.0).to(tl.float32)
    tl.store(gOut + i_m * N + i_n, rAcc.to(gOut.dtype.element_ty), mask=(i_m < M) & (i_n < N))


def product(a, b, bias=None, config=None):
    """[M, K] by [K, N], any strides; a dense [M, N]."""
    config = config or pick(a, b)
    (m, k), n = a.shape, b.shape[1]
    out = a.new_empty(m, n)
    grid = (cdiv(m, config["BLOCK_M"]) * cdiv(n, config["BLOCK_N"]),)
    launch(_gemm, grid, a, b, None if bias is None else bias.contiguous(), out, m, n, k, *a.stride(), *b.stride(), HAS_BIAS=bias is not None,
           EVEN_K=k % config["BLOCK_K"] == 0, **config)  # fmt: skip
    return out


def _config(m, n, k, warps, stages):
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8, "num_warps": warps, "num_stages": stages}


CONFIGS = (
    _config(128, 256, 64, 8, 3),
    _config(256, 128, 64, 8, 3),
    _config(128, 128, 64, 8, 4),
    _config(128, 128, 64, 4, 3),
    _config(128, 64, 64, 4, 4),
    _config(64, 64, 64, 4, 4),
    _config(64, 64, 32, 4, 2),
)
CONFIGS_32 = (_config(128, 64, 16, 8, 2), _config(64, 64, 16, 4, 2))  # plain fused multiply-adds: the tile lives in registers
PROGRAMS = 132  # about one for every multiprocessor of a Hopper; with fewer a smaller tile is faster


def pick(a, b):
    m, n = a.shape[0], b.shape[1]
    if a.dtype == torch.float32:
        return CONFIGS_32[0 if cdiv(m, 128) * cdiv(n, 64) >= PROGRAMS else 1]
    if any(x not in (0, 1) and x % 16 for x in (a.shape[1], *a.stride(), *b.stride())):
        return CONFIGS[6]  # loaded element by element, through registers: a larger tile spills
    for config in CONFIGS[:5]:
        if m >= config["BLOCK_M"] and n >= config["BLOCK_N"] and cdiv(m, config["BLOCK_M"]) * cdiv(n, config["BLOCK_N"]) >= PROGRAMS:
            return config
    return CONFIGS[5 if m <= 64 or cdiv(m, 128) * cdiv(n, 64) < PROGRAMS // 2 else 4]


def gemm(a, b, bias=None, *, config):
    return product(flat(a), b, bias, config).view(*a.shape[:-1], b.shape[1])


def gemm_backward(dout, a, b, bias):
    g, rows = flat(dout), flat(a)
    return product(g, b.t()).view(a.shape), product(rows.t(), g), g.new_empty(0) if bias is None else column_sum(g)


def linear(x, weight, bias=None, *, config):
    return gemm(x, weight.t(), bias, config=config)


def linear_backward(dout, x, weight, bias):
    g, rows = flat(dout), flat(x)
    return product(g, weight).view(x.shape), product(g.t(), rows), g.new_empty(0) if bias is None else column_sum(g)


def _refuse(name, wanted):
    def refuse(call):
        x = call[name]
        if (x.dtype == torch.float32) != wanted:
            return "float32 is for triton.float32" if not wanted else "16-bit tensors are for triton, on the tensor cores"
        return off_gpu(x)

    return refuse


def _forward(run, pick_call):
    name = next(iter(inspect.signature(run).parameters))
    return (
        Kernel("triton", run, "tensor cores, any strides, programs grouped for the L2", _refuse(name, False), CONFIGS, pick_call),
        Kernel("triton.float32", run, "true float32: fused multiply-adds, no tf32", _refuse(name, True), CONFIGS_32, pick_call),
    )


def _backward(run):
    return Kernel("triton", run, "the same kernel with strides swapped; dbias without atomics", lambda call: off_gpu(call["dout"]))


GEMM = _forward(gemm, lambda call: pick(flat(call["a"]), call["b"]))
LINEAR = _forward(linear, lambda call: pick(flat(call["x"]), call["weight"].t()))
GEMM_BACKWARD, LINEAR_BACKWARD = _backward(gemm_backward), _backward(linear_backward)
