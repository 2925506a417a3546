"""The gradient of attention with heads of 256, and of 192 with values of 128, for Hopper in CUDA C++."""

from typing import NamedTuple

import torch

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.cuda.tensor_map import TensorMap
from rooftile.ops._shared.launch import cdiv
from rooftile.ops.attention.refusals import for_the_copy_engine, too_small

V6 = Source.beside(__file__, "v6_hopper_wide_backward.cu")
LOG2E = 1.4426950408889634
BLOCK = 64  # rows of every tile


class Size(NamedTuple):
    """How a pass is made: stages of its rings, panels of its two left operands held in registers, and whether products are queued ahead."""

    stages: tuple[int, ...]
    held: tuple[int, int]
    ahead: bool

    def instance(self, name, *kind):
        return f"{name}<{', '.join(map(str, (*kind, *self.stages, *self.held)))}, {str(self.ahead).lower()}>"


KEYS = {(192, 128): Size((4,), (3, 2), True), (256, 256): Size((2,), (2, 2), False)}  # of queries and dout; of k and v
QUERIES = {(192, 128): Size((3, 3), (1, 0), True), (256, 256): Size((2, 1), (1, 0), False)}  # of keys and values; of q and dout


def _map(x):
    return TensorMap(x, (1, BLOCK, 1, 64), 128)


def hopper_wide(dout, q, k, v, out, lse, causal, scale, *, into=None):
    (b, t, h, _), dv = q.shape, v.shape[-1]
    grads = into or tuple(x.new_empty(x.shape) for x in (q, k, v))
    blocks = cdiv(t, BLOCK) * b * h
    rows = q.new_empty(blocks, 2, BLOCK, dtype=torch.float32)  # lse to base 2 and delta
    launch(
        V6,
        f"prepare<{CTYPE[q.dtype]}, {dv}>",
        blocks * dv // 32,
        256,
        rows,
        dout,
        out,
        lse.contiguous(),
        h,
        t,
        *dout.stride()[:3],
        *out.stride()[:3],
    )
    _keys(grads[1:], (q, k, v, dout), rows, causal, scale)
    _queries(grads[0], (q, k, v, dout), rows, causal, scale)
    return grads


def _keys(grads, tensors, rows, causal, scale):
    """Dynamic shared memory as struct KeysPlace has it: keys, values, stages of queries and dout, two of p, and of rows."""
    q, k, v, _ = tensors
    (b, t, h, d), (s, g), dv = q.shape, k.shape[1:3], v.shape[-1]
    size = KEYS[d, dv]
    shared = (1 + size.stages[0]) * (d + dv) * BLOCK * 2 + 2 * BLOCK * BLOCK * 2 + 2 * size.stages[0] * BLOCK * 4
    launch(V6, size.instance("keys", CTYPE[q.dtype], d, dv, str(causal).lower()), cdiv(s, BLOCK) * b * g, 384, *map(_map, (*grads, *tensors)),
           rows, g, h // g, t, s, scale, scale * LOG2E, shared=shared)  # fmt: skip


def _queries(dq, tensors, rows, causal, scale):
    """Dynamic shared memory as struct QueriesPlace has it: two tiles of queries and of dout, stages of keys and of values."""
    q, k, v, _ = tensors
    (b, t, h, d), (s, g), dv = q.shape, k.shape[1:3], v.shape[-1]
    size = QUERIES[d, dv]
    shared = ((2 + size.stages[0]) * d + (2 + size.stages[1]) * dv) * BLOCK * 2
    launch(V6, size.instance("queries", CTYPE[q.dtype], d, dv, str(causal).lower()), cdiv(t, 2 * BLOCK) * b * h, 384,
           *map(_map, (dq, *tensors)), rows, h, h // g, t, s, scale, scale * LOG2E, shared=shared)  # fmt: skip


def _refuse(call):
    d, dv = call["q"].shape[-1], call["v"].shape[-1]
    if (d, dv) not in KEYS:
        return f"D={d} and values of {dv}: it is written for 256 and 256, and for 192 and 128"
    return for_the_copy_engine(call) or off_gpu(call["q"])


BACKWARD = (
    Kernel(
        "cuda.v6_hopper_wide",
        hopper_wide,
        "seven products by wgmma, no sums in memory; D = 256, and 192 with values of 128",
        _refuse,
        limits=Limits(registers=168, shared_bytes=227 * 1024),
        architectures=(90,),
        sources=(V6,),
        declines=too_small,
    ),
)
