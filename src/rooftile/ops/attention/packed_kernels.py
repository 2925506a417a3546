"""Queries, keys and values as one tensor: attention's kernels on its views. What they save is autograd's copy of dq, dk and dv into one tensor,
4 bytes an element of each in 16 bits; who cannot write into views of it makes that copy here."""

import dataclasses

import torch

from rooftile.ops.attention import cuda_kernels
from rooftile.ops.attention.cudnn_kernels import CUDNN, CUDNN_BACKWARD
from rooftile.ops.attention.gluon_launchers import KERNELS as GLUON
from rooftile.ops.attention.triton_kernels import KERNELS, KERNELS_BACKWARD
from rooftile.ops.attention.wide_kernels import BACKWARD as WIDE_BACKWARD


def _views(x):
    return [x.select(2, i) for i in range(3)]  # one by one: a launcher that only takes views can be replayed


def _of_views(ask):
    return lambda call: ask({**call, **dict(zip("qkv", _views(call["qkv"])))})


def _on_views(run, qkv, causal, scale, **config):
    return run(*_views(qkv), causal, scale, **config)


def _stacked(run, dout, qkv, out, lse, causal, scale, **config):
    return torch.stack(run(dout, *_views(qkv), out, lse, causal, scale, **config), 2)


def _in_place(run, dout, qkv, out, lse, causal, scale, **config):
    dqkv = qkv.new_empty(qkv.shape)
    run(dout, *_views(qkv), out, lse, causal, scale, **config, into=_views(dqkv))
    return dqkv


def _packed(kernel, how):
    def run(*call, **config):
        return how(kernel.run, *call, **config)

    asks = {n: _of_views(getattr(kernel, n)) for n in ("refuse", "declines")}
    return dataclasses.replace(kernel, run=run, pick=kernel.pick and _of_views(kernel.pick), **asks)


ALIKE = tuple(k for k in GLUON if k.name != "gluon.latent")  # whose values are of another width than keys: not of one tensor
FORWARD = tuple(_packed(k, _on_views) for k in (*ALIKE, CUDNN, *KERNELS))
BACKWARD = (
    *(_packed(k, _in_place) for k in (*cuda_kernels.BACKWARD, *WIDE_BACKWARD)),
    *(_packed(k, _stacked) for k in (CUDNN_BACKWARD, *KERNELS_BACKWARD)),
)
