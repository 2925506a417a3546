"""The gradient of attention with heads of 256, and of 192 with values of 128, for Hopper in CUDA C++."""

import torch

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.cuda.tensor_map import TensorMap
from rooftile.ops._shared.launch import cdiv
from rooftile.ops.attention.cudnn_kernels import too_small

V6 = Source.beside(__file__, "v6_hopper_wide_backward.cu")
LOG2E = 1.4426950408889634
BLOCK = 64  # rows of every tile
# D, Dv: stages of queries and dout; of keys and of values, where queries are at home; panels held of k, v, q and dout: what registers have room for
SIZES = {(192, 128): (4, 3, 3, (3, 2, 3, 0)), (256, 256): (2, 2, 1, (2, 2, 1, 0))}


def _map(x, rows=BLOCK):
    return TensorMap(x, (1, rows, 1, 64), 128)


def hopper_wide(dout, q, k, v, out, lse, causal, scale, *, config, into=None):
    (b, t, h, d), dv = q.shape, v.shape[-1]
    grads = into or tuple(x.new_empty(x.shape) for x in (q, k, v))
    stages, k_stages, v_stages, held = SIZES[d, dv]
    k_held, v_held, q_held, dout_held = held if config["HELD"] else (0, 0, 0, 0)
    blocks = cdiv(t, BLOCK) * b * h
    rows = q.new_empty(blocks, 2, BLOCK, dtype=torch.float32)  # lse to base 2 and delta
    kind = f"{CTYPE[q.dtype]}, {d}, {dv}, {str(causal).lower()}"
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
    _keys(
        f"keys<{kind}, {stages}, {k_held}, {v_held}, {config['CLUSTER']}>", grads, (q, k, v, dout), rows, scale, stages, config["CLUSTER"]
    )
    _queries(
        f"queries<{kind}, {k_stages}, {v_stages}, {q_held}, {dout_held}, {config['CLUSTER']}>",
        grads[0],
        (q, k, v, dout),
        rows,
        scale,
        k_stages,
        v_stages,
        config["CLUSTER"],
    )
    return grads


def _keys(instance, grads, tensors, rows, scale, stages, cluster):
    """Dynamic shared memory as struct KeysPlace has it: keys, values, stages of queries and dout, two of p, and of rows."""
    q, k, v, dout = tensors
    (b, t, h, d), (s, g), dv = q.shape, k.shape[1:3], v.shape[-1]
    shared = (1 + stages) * (d + dv) * BLOCK * 2 + 2 * BLOCK * BLOCK * 2 + 2 * stages * BLOCK * 4
    part = BLOCK // cluster  # rows of a tile of queries that a block brings
    launch(V6, instance, cdiv(s, BLOCK * cluster) * cluster * b * g, 384, _map(grads[1]), _map(grads[2]), _map(q, part), _map(k), _map(v),
           _map(dout, part), rows, g, h // g, t, s, scale, scale * LOG2E, shared=shared)  # fmt: skip


def _queries(instance, dq, tensors, rows, scale, k_stages, v_stages, cluster):
    """Dynamic shared memory as struct QueriesPlace has it: two tiles of queries and of dout, stages of keys and of values."""
    q, k, v, dout = tensors
    (b, t, h, d), (s, g), dv = q.shape, k.shape[1:3], v.shape[-1]
    shared = ((2 + k_stages) * d + (2 + v_stages) * dv) * BLOCK * 2
    launch(V6, instance, cdiv(t, 2 * BLOCK * cluster) * cluster * b * h, 384, _map(dq), _map(q), _map(k, BLOCK // cluster),
           _map(v, BLOCK // cluster), _map(dout), rows, h, h // g, t, s, scale,
           scale * LOG2E, shared=shared)  # fmt: skip


def _refuse(call):
    q, d, dv = call["q"], call["q"].shape[-1], call["v"].shape[-1]
    if q.dtype == torch.float32:
        return "its products are of 16-bit numbers, the tensor is float32"
    if (d, dv) not in SIZES:
        return f"D={d} and values of {dv}: it is written for 256 and 256, and for 192 and 128"
    if q.numel() == 0 or call["k"].numel() == 0:
        return "there is nothing to compute"
    for n in ("dout", "q", "k", "v", "out"):
        x = call[n]
        if x.stride(-1) != 1 or x.data_ptr() % 16 or any(s % 8 or s <= 0 for s, size in zip(x.stride()[:3], x.shape) if size > 1):
            return f"{n} with strides {list(x.stride())} at {x.data_ptr() % 16} bytes past a multiple of 16 is none TMA can read"
    return off_gpu(q)


# HELD: a part of the left operands that stay at home lies in registers. CLUSTER: so many blocks share the tiles that they bring.
CONFIGS = tuple({"HELD": held, "CLUSTER": cluster} for held in (True, False) for cluster in (1, 2))
BACKWARD = (
    Kernel(
        "cuda.v6_hopper_wide",
        hopper_wide,
        "seven products by wgmma, no sums in memory; D = 256, and 192 with values of 128",
        _refuse,
        CONFIGS,
        limits=Limits(registers=168, shared_bytes=227 * 1024),
        architectures=(90,),
        sources=(V6,),
        declines=too_small,
    ),
)
