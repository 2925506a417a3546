"""LayerNorm in CUDA C++: from sums halved in shared memory to rows that arrive while the one before them is written."""

import torch

from rooftile.core.kernel import Kernel, Limits
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


def _types(x, weight, bias):
    """T, W, B, WEIGHT, BIAS of an instance, and a tensor to point to where there is no weight or bias."""
    w, b = (x if p is None else p if p.is_contiguous() else p.contiguous() for p in (weight, bias))
    there = ", ".join("false" if p is None else "true" for p in (weight, bias))
    return f"{CTYPE[x.dtype]}, {CTYPE[w.dtype]}, {CTYPE[b.dtype]}, {there}", w, b


def _outputs(x):
    return dense_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32), x.new_empty(x.shape[:-1], dtype=torch.float32)


def _grads(x, weight, bias):
    return dense_like(x), *(x.new_empty(0) if p is None else p.new_empty(p.shape) for p in (weight, bias))


def naive(x, weight, bias, eps):
    out, mean, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, w, b = _types(x, weight, bias)
    launch(V1, f"layernorm<{types}>", m, 256, out, mean, rstd, x, w, b, n, stride, eps)
    return out, mean, rstd


def naive_backward(dout, x, weight, bias, mean, rstd):
    dx, dweight, dbias = _grads(x, weight, bias)
    dout, m, n, stride_dout = rows(dout)
    x, _, _, stride_x = rows(x)
    mean, rstd = mean.contiguous(), rstd.contiguous()
    types, w, _ = _types(x, weight, bias)
    t, wt, bt, has_w, has_b = types.split(", ")
    instance = f"layernorm_backward<{t}, {wt}, {has_w}>"
    launch(V1, instance, m, 256, dx, dout, x, w, mean, rstd, n, stride_dout, stride_x)
    if "true" in types:
        to_w, to_b = dx if weight is None else dweight, dx if bias is None else dbias
        instance = f"columns<{t}, {wt}, {bt}, {has_w}, {has_b}>"
        launch(V1, instance, cdiv(n, 256), 256, to_w, to_b, dout, x, mean, rstd, m, n, stride_dout, stride_x)
    return dx, dweight, dbias


def warp(x, weight, bias, eps):
    out, mean, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, w, b = _types(x, weight, bias)
    launch(V2, f"layernorm<{types}>", m, threads(n, 16), out, mean, rstd, x, w, b, n, stride, eps)
    return out, mean, rstd


def vector(x, weight, bias, eps):
    out, mean, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, w, b = _types(x, weight, bias)
    launch(V3, f"layernorm<{types}>", m, threads(n * x.itemsize, 64), out, mean, rstd, x, w, b, n, stride, eps)
    return out, mean, rstd


def register_row(x, weight, bias, eps, *, config):
    out, mean, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, w, b = _types(x, weight, bias)
    vectors = n * x.itemsize // 16
    block = threads(vectors, config["vecs"])
    launch(V4, f"layernorm<{types}, {cdiv(vectors, block)}, {block}>", m, block, out, mean, rstd, x, w, b, n, stride, eps)
    return out, mean, rstd


def short_rows(x, weight, bias, eps, *, config):
    out, mean, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, w, b = _types(x, weight, bias)
    vectors = n * x.itemsize // 16
    lanes = min(32, max(8, power_of_2(cdiv(vectors, config["vecs"]))))
    per = config["threads"] // lanes
    instance = f"layernorm<{types}, {cdiv(vectors, lanes)}, {lanes}, {per}>"
    launch(V5, instance, cdiv(m, per), (lanes, per), out, mean, rstd, x, w, b, m, n, stride, eps)
    return out, mean, rstd


def pipeline(x, weight, bias, eps, *, config):
    out, mean, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, w, b = _types(x, weight, bias)
    d = deal(x, config)
    instance = f"layernorm<{types}, {d.instance}>"
    launch(V6, instance, d.blocks(x, m), d.threads, out, mean, rstd, x, w, b, m, n, stride, eps, shared=d.shared())
    return out, mean, rstd


def pipeline_backward(dout, x, weight, bias, mean, rstd, *, config):
    dx, dweight, dbias = _grads(x, weight, bias)
    dout, m, n, stride_dout = rows(dout)
    x, _, _, stride_x = rows(x)
    mean, rstd = mean.contiguous(), rstd.contiguous()
    types, w, _ = _types(x, weight, bias)
    t, wt, _, has_w, has_b = types.split(", ")
    d = deal(x, config, tensors=2, most=4, widest=512)  # 1024 threads of 64 registers spill
    blocks = d.blocks(x, m)
    partial = x.new_empty((0 if weight is None and bias is None else 2 * blocks, n), dtype=torch.float32)
    instance = f"layernorm_backward<{t}, {wt}, {has_w}, {has_b}, {d.instance}>"
    launch(V6, instance, blocks, d.threads, dx, partial, dout, x, w, mean, rstd, m, n, stride_dout, stride_x, shared=d.shared(2))
    if partial.numel():
        add_rows(partial, dweight, dbias)
    return dx, dweight, dbias


def cluster(x, weight, bias, eps, *, config):
    out, mean, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, w, b = _types(x, weight, bias)
    parts, blocks, block, shared = clustered(x, m, config)
    instance = f"layernorm<{types}, {parts}>"
    launch(V7, instance, blocks, block, out, mean, rstd, x, w, b, m, n, stride, eps, shared=shared)
    return out, mean, rstd


def cluster_backward(dout, x, weight, bias, mean, rstd, *, config):
    dx, dweight, dbias = _grads(x, weight, bias)
    dout, m, n, stride_dout = rows(dout)
    x, _, _, stride_x = rows(x)
    mean, rstd = mean.contiguous(), rstd.contiguous()
    types, w, _ = _types(x, weight, bias)
    t, wt, _, has_w, has_b = types.split(", ")
    parts, blocks, block, shared = clustered(x, m, config, tensors=2, widest=512)
    clusters = blocks // int(parts.split(",")[0])
    partial = x.new_empty((0 if weight is None and bias is None else 2 * clusters, n), dtype=torch.float32)
    instance = f"layernorm_backward<{t}, {wt}, {has_w}, {has_b}, {parts}>"
    launch(V7, instance, blocks, block, dx, partial, dout, x, w, mean, rstd, m, n, stride_dout, stride_x, shared=shared)
    if partial.numel():
        add_rows(partial, dweight, dbias)
    return dx, dweight, dbias


def exchange(x, weight, bias, eps, *, config):
    out, mean, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, w, b = _types(x, weight, bias)
    s = share(x, config, HELD, beside=stays(x, weight) + stays(x, bias))
    instance = f"layernorm<{types}, {s.instance}>"
    launch(V8, instance, s.blocks(x, m, V8, instance), s.threads, out, mean, rstd, x, w, b, m, n, stride, eps, shared=s.shared)
    return out, mean, rstd


def _shared(call):
    x = call["x"]
    return clusters(8)(call) or too_wide(x, HELD) or no_room(x, stays(x, call["weight"]) + stays(x, call["bias"]))


def exchange_backward(dout, x, weight, bias, mean, rstd, *, config):
    dx, dweight, dbias = _grads(x, weight, bias)
    dout, m, n, stride_dout = rows(dout)
    x, _, _, stride_x = rows(x)
    mean, rstd = mean.contiguous(), rstd.contiguous()
    types, w, _ = _types(x, weight, bias)
    t, wt, _, has_w, has_b = types.split(", ")
    s = share(x, config, _sums(x), tensors=2, beside=stays(x, weight))
    instance = f"layernorm_backward<{t}, {wt}, {has_w}, {has_b}, {s.instance}>"
    blocks = s.blocks(x, m, V8, instance)
    partial = x.new_empty((0 if weight is None and bias is None else 2 * blocks // s.cluster, n), dtype=torch.float32)
    launch(V8, instance, blocks, s.threads, dx, partial, dout, x, w, mean, rstd, m, n, stride_dout, stride_x, shared=s.shared)
    if partial.numel():
        add_rows(partial, dweight, dbias)
    return dx, dweight, dbias


def _sums(x):
    """Two sums a column: 16 registers a vector of 16-bit elements."""
    return Hold(1, 4) if x.itemsize == 2 else Hold(2, 4)


def _shared_backward(call):
    x = call["x"]
    return clusters(2)(call) or too_wide(x, _sums(x)) or no_room(x, stays(x, call["weight"]), 2)


def _wider_than_one(call):
    one = "N=1: one column has no gradient, and a fused multiply-add would leave its rounding times rstd"
    return any_row(call) or (one if call["x"].shape[-1] == 1 else None)


def pick_backward(call):
    """32 sums of 16 columns are 96 to 128 registers, so 512 threads a multiprocessor. Rows of 2 KB and less go to a warp each, 8 of a
    block, which adds its warps' sums before it writes them; longer ones have 2 vectors a thread, or 4 where 512 threads must hold more.
    Two rows of each tensor wait or arrive: 64 KB a multiprocessor and more from N = 2048 on."""
    size = call["x"].shape[-1] * call["x"].itemsize
    if size <= 2048:
        return {"vecs": 2 if size <= 1024 else 4, "threads": 256, "stages": 2, "per": 2}
    return {"vecs": 2, "threads": 256, "stages": 2, "per": max(1, 512 // max(64, size // 32))}


BACKWARD_PIPELINE = tuple(
    {"vecs": v, "threads": 256, "stages": s, "per": p}
    for v, s, p in ((4, 2, 1), (4, 2, 2), (1, 2, 1), (1, 2, 2), (1, 3, 1), (2, 2, 1), (2, 2, 2), (2, 3, 1), (2, 3, 2), (2, 2, 4), (2, 2, 8))
)

ELSEWHERE = Limits(spill_bytes_elsewhere=256)  # the bounds on threads are set for sm_90; sm_100 wants a few registers more for two sums

FORWARD = (
    Kernel("cuda.v8_exchange", exchange, "numbers travel while the row before is written, the parameters stay", _shared, SHARE, pick_share,
           sources=(V8,), declines=alone, limits=ALL, architectures=(90,)),
    Kernel("cuda.v7_cluster", cluster, "a cluster of blocks a row", clusters(8), CLUSTER, pick_cluster, sources=(V7,), limits=ELSEWHERE, declines=alone),
    Kernel("cuda.v6_pipeline", pipeline, "row after row a block, the next ones in flight", upto(8), PIPELINE, pick_pipeline,
           sources=(V6,), limits=ELSEWHERE),
    Kernel("cuda.v5_rows", short_rows, "several short rows a block, no barrier", short, SHORT, sources=(V5,)),
    Kernel("cuda.v4_register_row", register_row, "the row in registers: one read", upto(8), REGISTERS,
           pick_registers, sources=(V4,), limits=ELSEWHERE),
    Kernel("cuda.v3_vector", vector, "16 bytes an access", even, sources=(V3,)),
    Kernel("cuda.v2_warp", warp, "sums through shuffles", serial(4096), sources=(V2,)),
    Kernel("cuda.v1_naive", naive, "a block a row, sums halved in shared memory", serial(4096), sources=(V1,)),
)  # fmt: skip
BACKWARD = (
    Kernel("cuda.v8_exchange", exchange_backward, "numbers travel while the row before is written, the weight stays", _shared_backward, SHARE, pick_share,
           sources=(V8, ADD_ROWS), declines=alone, limits=ALL, architectures=(90,)),
    Kernel("cuda.v7_cluster", cluster_backward, "a cluster of blocks a row", clusters(2), CLUSTER_BACKWARD, pick_cluster_backward,
           sources=(V7, ADD_ROWS), limits=ELSEWHERE, declines=alone),
    Kernel("cuda.v6_pipeline", pipeline_backward, "row after row, the parameters' gradients in registers", upto(2), BACKWARD_PIPELINE,
           pick_backward, sources=(V6, ADD_ROWS)),
    Kernel("cuda.v1_naive", naive_backward, "a block a row, then a thread a column", _wider_than_one, sources=(V1,)),
)  # fmt: skip
