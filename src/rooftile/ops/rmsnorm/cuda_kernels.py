"""RMSNorm in CUDA C++: from sums halved in shared memory to rows that arrive while the one before them is written."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_norms import (
    CLUSTER,
    CLUSTER_BACKWARD,
    PIPELINE,
    REGISTERS,
    SHORT,
    any_row,
    clusters,
    even,
    pick_cluster,
    pick_cluster_backward,
    pick_pipeline,
    pick_registers,
    serial,
    short,
    upto,
)
from rooftile.ops._shared.cuda_rows import ADD_ROWS, add_rows, alone, clustered, deal, threads
from rooftile.ops._shared.cuda_shares import ALL, HELD, SHARE, Hold, no_room, pick_share, share, stays, too_wide
from rooftile.ops._shared.launch import cdiv, dense_like, power_of_2, rows

V1, V2, V3, V4, V5, V6, V7, V8 = (
    Source.beside(__file__, f"{name}.cu")
    for name in ("v1_naive", "v2_warp", "v3_vector", "v4_register_row", "v5_rows", "v6_pipeline", "v7_cluster", "v8_exchange")
)


def _types(x, weight):
    """T, W, WEIGHT of an instance, and a tensor to point to where there is no weight."""
    there = weight is not None
    dense = x if not there else weight if weight.is_contiguous() else weight.contiguous()
    return f"{CTYPE[x.dtype]}, {CTYPE[dense.dtype]}, {'true' if there else 'false'}", dense


def _outputs(x):
    return dense_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)


def _grads(x, weight):
    return dense_like(x), x.new_empty(0) if weight is None else weight.new_empty(weight.shape)


def naive(x, weight, eps, offset):
    out, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, weight = _types(x, weight)
    launch(V1, f"rmsnorm<{types}>", m, 256, out, rstd, x, weight, n, stride, eps, offset)
    return out, rstd


def naive_backward(dout, x, weight, rstd, offset):
    dx, dweight = _grads(x, weight)
    dout, m, n, stride_dout = rows(dout)
    x, _, _, stride_x = rows(x)
    rstd = rstd.contiguous()
    types, dense = _types(x, weight)
    launch(V1, f"rmsnorm_backward<{types}>", m, 256, dx, dout, x, dense, rstd, n, stride_dout, stride_x, offset)
    if weight is not None:
        instance = f"columns<{CTYPE[x.dtype]}, {CTYPE[weight.dtype]}>"
        launch(V1, instance, cdiv(n, 256), 256, dweight, dout, x, rstd, m, n, stride_dout, stride_x)
    return dx, dweight


def warp(x, weight, eps, offset):
    out, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, weight = _types(x, weight)
    launch(V2, f"rmsnorm<{types}>", m, threads(n, 16), out, rstd, x, weight, n, stride, eps, offset)
    return out, rstd


def vector(x, weight, eps, offset):
    out, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, weight = _types(x, weight)
    launch(V3, f"rmsnorm<{types}>", m, threads(n * x.itemsize, 64), out, rstd, x, weight, n, stride, eps, offset)
    return out, rstd


def register_row(x, weight, eps, offset, *, config):
    out, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, weight = _types(x, weight)
    vectors = n * x.itemsize // 16
    block = threads(vectors, config["vecs"])
    launch(V4, f"rmsnorm<{types}, {cdiv(vectors, block)}, {block}>", m, block, out, rstd, x, weight, n, stride, eps, offset)
    return out, rstd


def short_rows(x, weight, eps, offset, *, config):
    out, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, weight = _types(x, weight)
    vectors = n * x.itemsize // 16
    lanes = min(32, max(8, power_of_2(cdiv(vectors, config["vecs"]))))
    per = config["threads"] // lanes
    instance = f"rmsnorm<{types}, {cdiv(vectors, lanes)}, {lanes}, {per}>"
    launch(V5, instance, cdiv(m, per), (lanes, per), out, rstd, x, weight, m, n, stride, eps, offset)
    return out, rstd


def pipeline(x, weight, eps, offset, *, config):
    out, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, weight = _types(x, weight)
    d = deal(x, config)
    instance = f"rmsnorm<{types}, {d.instance}>"
    launch(V6, instance, d.blocks(x, m), d.threads, out, rstd, x, weight, m, n, stride, eps, offset, shared=d.shared())
    return out, rstd


def pipeline_backward(dout, x, weight, rstd, offset, *, config):
    dx, dweight = _grads(x, weight)
    dout, m, n, stride_dout = rows(dout)
    x, _, _, stride_x = rows(x)
    rstd = rstd.contiguous()
    types, dense = _types(x, weight)
    d = deal(x, config, tensors=2, most=4)
    blocks = d.blocks(x, m)
    partial = x.new_empty((blocks if weight is not None else 0, n), dtype=torch.float32)
    instance = f"rmsnorm_backward<{types}, {d.instance}>"
    launch(V6, instance, blocks, d.threads, dx, partial, dout, x, dense, rstd, m, n, stride_dout, stride_x, offset, shared=d.shared(2))
    if weight is not None:
        add_rows(partial, dweight)
    return dx, dweight


def cluster(x, weight, eps, offset, *, config):
    out, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, weight = _types(x, weight)
    parts, blocks, block, shared = clustered(x, m, config)
    instance = f"rmsnorm<{types}, {parts}>"
    launch(V7, instance, blocks, block, out, rstd, x, weight, m, n, stride, eps, offset, shared=shared)
    return out, rstd


def cluster_backward(dout, x, weight, rstd, offset, *, config):
    dx, dweight = _grads(x, weight)
    dout, m, n, stride_dout = rows(dout)
    x, _, _, stride_x = rows(x)
    rstd = rstd.contiguous()
    types, dense = _types(x, weight)
    parts, blocks, block, shared = clustered(x, m, config, tensors=2)
    clusters = blocks // int(parts.split(",")[0])
    partial = x.new_empty((clusters if weight is not None else 0, n), dtype=torch.float32)
    instance = f"rmsnorm_backward<{types}, {parts}>"
    launch(V7, instance, blocks, block, dx, partial, dout, x, dense, rstd, m, n, stride_dout, stride_x, offset, shared=shared)
    if weight is not None:
        add_rows(partial, dweight)
    return dx, dweight


def exchange(x, weight, eps, offset, *, config):
    out, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, dense = _types(x, weight)
    s = share(x, config, HELD, beside=stays(x, weight))
    instance = f"rmsnorm<{types}, {s.instance}>"
    launch(V8, instance, s.blocks(x, m, V8, instance), s.threads, out, rstd, x, dense, m, n, stride, eps, offset, shared=s.shared)
    return out, rstd


def _shared(call):
    x = call["x"]
    return clusters(8)(call) or too_wide(x, HELD) or no_room(x, stays(x, call["weight"]))


def exchange_backward(dout, x, weight, rstd, offset, *, config):
    dx, dweight = _grads(x, weight)
    dout, m, n, stride_dout = rows(dout)
    x, _, _, stride_x = rows(x)
    rstd = rstd.contiguous()
    types, dense = _types(x, weight)
    s = share(x, config, _sums(x), tensors=2, beside=stays(x, weight))
    instance = f"rmsnorm_backward<{types}, {s.instance}>"
    blocks = s.blocks(x, m, V8, instance)
    partial = x.new_empty((blocks // s.cluster if weight is not None else 0, n), dtype=torch.float32)
    launch(V8, instance, blocks, s.threads, dx, partial, dout, x, dense, rstd, m, n, stride_dout, stride_x, offset, shared=s.shared)
    if weight is not None:
        add_rows(partial, dweight)
    return dx, dweight


def _sums(x):
    """A sum a column: 8 registers a vector of 16-bit elements."""
    return Hold(2, 4) if x.itemsize == 2 else Hold(4, 8)


def _shared_backward(call):
    x = call["x"]
    return clusters(2)(call) or too_wide(x, _sums(x)) or no_room(x, stays(x, call["weight"]), 2)


def pick_backward(call):
    """Short rows a warp each, 8 of a block, which adds its warps' sums before it writes them: 4 vectors a lane. Longer ones 2 vectors a
    thread: 16 columns' sums in registers. Two rows of each tensor wait or arrive, 64 KB and more a multiprocessor, in no more blocks
    than that wants: each writes a row of partial sums, at N = 4096 and 3 a multiprocessor 6.5 MB beside 403 MB of rows (M = 16384)."""
    size = call["x"].shape[-1] * call["x"].itemsize
    if size <= 2048:
        return {"vecs": 4, "threads": 256, "stages": 2, "per": 3}
    return {"vecs": 2, "threads": 256, "stages": 2, "per": max(1, 768 // max(64, size // 32))}


BACKWARD_PIPELINE = tuple(
    {"vecs": v, "threads": 256, "stages": s, "per": p}
    for v, s, p in ((4, 2, 2), (4, 2, 3), (4, 1, 4), (4, 1, 1), (1, 2, 2), (1, 3, 1), (2, 2, 1), (2, 2, 2), (2, 2, 3), (2, 2, 4), (2, 3, 2))
)

FORWARD = (
    Kernel("cuda.v8_exchange", exchange, "numbers travel while the row before is written, the parameters stay", _shared, SHARE, pick_share,
           sources=(V8,), declines=alone, limits=ALL, architectures=(90,)),
    Kernel("cuda.v7_cluster", cluster, "a cluster of blocks a row", clusters(8), CLUSTER, pick_cluster, sources=(V7,), declines=alone),
    Kernel("cuda.v6_pipeline", pipeline, "row after row a block, the next ones in flight", upto(8), PIPELINE, pick_pipeline, sources=(V6,)),
    Kernel("cuda.v5_rows", short_rows, "several short rows a block, no barrier", short, SHORT, sources=(V5,)),
    Kernel("cuda.v4_register_row", register_row, "the row in registers: one read", upto(8), REGISTERS,
           pick_registers, sources=(V4,)),
    Kernel("cuda.v3_vector", vector, "16 bytes an access", even, sources=(V3,)),
    Kernel("cuda.v2_warp", warp, "sums through shuffles", any_row, sources=(V2,)),
    Kernel("cuda.v1_naive", naive, "a block a row, sums halved in shared memory", serial(65537), sources=(V1,)),
)  # fmt: skip
BACKWARD = (
    Kernel("cuda.v8_exchange", exchange_backward, "numbers travel while the row before is written, the weight stays", _shared_backward, SHARE, pick_share,
           sources=(V8, ADD_ROWS), declines=alone, limits=ALL, architectures=(90,)),
    Kernel("cuda.v7_cluster", cluster_backward, "a cluster of blocks a row", clusters(2), CLUSTER_BACKWARD, pick_cluster_backward,
           sources=(V7, ADD_ROWS), declines=alone),
    Kernel("cuda.v6_pipeline", pipeline_backward, "row after row, the weight's gradient in registers", upto(2), BACKWARD_PIPELINE,
           pick_backward, sources=(V6, ADD_ROWS)),
    Kernel("cuda.v1_naive", naive_backward, "a block a row, then a thread a column", any_row, sources=(V1,)),
)  # fmt: skip
