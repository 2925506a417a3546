"""Queries and keys turned, then attention's kernels. Their gradients are written where they belong in that of the one tensor, and turned back as they are,
or there: nothing is put together behind them, which took 4 bytes an element of qkv in 16 bits. Who cannot write into views has that copy made here."""

import dataclasses

import torch

import rooftile.ops.rope.api  # noqa: F401  fills OPS
from rooftile.core.kernel import OPS
from rooftile.ops.attention import cuda_kernels
from rooftile.ops.attention.cudnn_kernels import CUDNN, CUDNN_BACKWARD
from rooftile.ops.attention.packed_kernels import ALIKE
from rooftile.ops.attention.rotary_spec import parts
from rooftile.ops.attention.triton_kernels import KERNELS, KERNELS_BACKWARD
from rooftile.ops.attention.wide_kernels import BACKWARD as WIDE_BACKWARD

TURNING = tuple({s.path: s for n in ("rope", "rope_overwrite") for k in OPS[n].kernels for s in k.sources}.values())


def _forward(kernel):
    def run(qkv, cos, sin, positions, kv_heads, interleaved, causal, scale, *, save=True, **config):
        q, k, v = parts(qkv, kv_heads)
        q, k = OPS["rope"].launch(q, k, cos, sin, positions, interleaved)
        out, lse = kernel.run(q, k, v, causal, scale, **config)
        return out, lse, *((q, k) if save else (None, None))

    return _rotary(kernel, run)


def _backward(kernel, made, turns_back=None):
    """turns_back: of a kernel that takes `turned`, whether it can."""

    def run(dout, qkv, cos, sin, positions, out, lse, q, k, kv_heads, interleaved, causal, scale, **config):
        call = dout, q, k, parts(qkv, kv_heads)[2], out, lse, causal, scale
        if turns_back and turns_back(qkv.shape[-1], cos, sin, positions, interleaved):
            return made(kernel.run, qkv, kv_heads, call, config | {"turned": (cos, sin)})
        dqkv = made(kernel.run, qkv, kv_heads, call, config)
        OPS["rope_overwrite"].launch(*parts(dqkv, kv_heads)[:2], cos, -sin, positions, interleaved)
        return dqkv

    return _rotary(kernel, run)


def _in_place(run, qkv, kv_heads, call, config):
    dqkv = qkv.new_empty(qkv.shape)
    run(*call, **config, into=parts(dqkv, kv_heads))
    return dqkv


def _beside(run, qkv, kv_heads, call, config):
    return torch.cat(run(*call, **config), 2)


def _of_parts(ask):
    return lambda call: ask({**dict(zip("qkv", parts(call["qkv"], call["kv_heads"]))), **call})


def _rotary(kernel, run):
    asks = {n: _of_parts(getattr(kernel, n)) for n in ("refuse", "declines")}
    pick = kernel.pick and _of_parts(kernel.pick)
    return dataclasses.replace(kernel, run=run, pick=pick, sources=(*kernel.sources, *TURNING), **asks)


FORWARD = tuple(_forward(k) for k in (*ALIKE, CUDNN, *KERNELS))
BACKWARD = (
    *(_backward(k, _in_place, cuda_kernels.turns_back) for k in cuda_kernels.BACKWARD),
    *(_backward(k, _in_place) for k in WIDE_BACKWARD),
    *(_backward(k, _beside) for k in (CUDNN_BACKWARD, *KERNELS_BACKWARD)),
)
