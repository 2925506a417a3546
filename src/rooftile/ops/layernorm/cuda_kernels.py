"""LayerNorm in CUDA C++: from sums halved in shared memory to rows that arrive while the one before them is written."""

import torch

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_rows import (
    ADD_ROWS,
    ALONE,
    Hold,
    add_rows,
    clustered,
    deal,
    long_sums,
    no_clusters,
    no_room,
    share,
    threads,
    too_long,
    too_wide,
    uneven,
    wide_hold,
    wider_than,
)
from rooftile.ops._shared.launch import cdiv, dense_like, power_of_2, rows

V1, V2, V3, V4, V5, V6, V7, V8, V9 = (
    Source.beside(__file__, f"{name}.cu")
    for name in ("v1_naive", "v2_warp", "v3_vector", "v4_register_row", "v5_rows", "v6_pipeline", "v7_cluster", "v8_exchange", "v9_bulk")
)  # fmt: skip


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
    if weight is not None:
        add_rows(partial[:blocks], dweight)
    if bias is not None:
        add_rows(partial[blocks:], dbias)
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
    if weight is not None:
        add_rows(partial[:clusters], dweight)
    if bias is not None:
        add_rows(partial[clusters:], dbias)
    return dx, dweight, dbias


def exchange(x, weight, bias, eps, *, config):
    return _shared_row(V8, share(x, config, wide_hold(x)), x, weight, bias, eps)


def bulk(x, weight, bias, eps, *, config):
    return _shared_row(V9, share(x, config, wide_hold(x), beside=_beside(x, weight, bias)), x, weight, bias, eps)


def bulk_backward(dout, x, weight, bias, mean, rstd, *, config):
    dx, dweight, dbias = _grads(x, weight, bias)
    dout, m, n, stride_dout = rows(dout)
    x, _, _, stride_x = rows(x)
    mean, rstd = mean.contiguous(), rstd.contiguous()
    types, w, _ = _types(x, weight, bias)
    t, wt, _, has_w, has_b = types.split(", ")
    s = share(x, config, sums_hold(x), tensors=2, beside=_beside(x, weight))
    instance = f"layernorm_backward<{t}, {wt}, {has_w}, {has_b}, {s.instance}>"
    blocks = s.blocks(x, m, V9, instance)
    clusters = blocks // s.cluster
    partial = x.new_empty((0 if weight is None and bias is None else 2 * clusters, n), dtype=torch.float32)
    launch(V9, instance, blocks, s.threads, dx, partial, dout, x, w, mean, rstd, m, n, stride_dout, stride_x, shared=s.shared)
    if weight is not None:
        add_rows(partial[:clusters], dweight)
    if bias is not None:
        add_rows(partial[clusters:], dbias)
    return dx, dweight, dbias


def sums_hold(x):
    """Two sums a column: 16 registers a vector of 16-bit elements."""
    return Hold(1, 4) if x.itemsize == 2 else Hold(2, 4)


def _beside(x, *parameters):
    """Bytes of parameters for each 16 of a row."""
    return sum(p.itemsize * 16 // x.itemsize for p in parameters if p is not None)


def _shared_row(source, s, x, weight, bias, eps):
    out, mean, rstd = _outputs(x)
    x, m, n, stride = rows(x)
    types, w, b = _types(x, weight, bias)
    instance = f"layernorm<{types}, {s.instance}>"
    launch(source, instance, s.blocks(x, m, source, instance), s.threads, out, mean, rstd, x, w, b, m, n, stride, eps, shared=s.shared)
    return out, mean, rstd


def _any(call):
    x = call["x"]
    return off_gpu(x) or too_long(x) or (None if x.shape[-1] else "N=0: a row without columns has no mean")


def _wider_than_one(call):
    one = "N=1: one column has no gradient, and a fused multiply-add would leave its rounding times rstd"
    return _any(call) or (one if call["x"].shape[-1] == 1 else None)


def _serial(most):
    return lambda call: _any(call) or long_sums(call["x"], most)


def _even(call):
    return _any(call) or uneven(call)


def _upto(most):
    return lambda call: _even(call) or wider_than(call["x"], most)


def _short(call):
    longest = 32 * 8 * 16 // call["x"].itemsize
    n = call["x"].shape[-1]
    return _even(call) or (None if n <= longest else f"N={n} is longer than the {longest} columns that a warp holds")


def pick_pipeline(call):
    """64 KB or more in flight a multiprocessor, three times what the latency of memory asks for: 16 bytes x 4 vectors x 1024 threads. A
    row of more than 32 KB takes 8 vectors a thread, so that two blocks of it fit the registers."""
    size = call["x"].shape[-1] * call["x"].itemsize
    if size <= 2048:
        return {"vecs": 4, "threads": 128, "stages": 1, "per": 10}
    if size <= 32 * 1024:
        return {"vecs": 4, "threads": 128, "stages": 1, "per": max(2, 1280 // max(32, size // 64))}
    return {"vecs": 8, "threads": 128, "stages": 1, "per": 2 if size <= 64 * 1024 else 1}


def pick_backward(call):
    """32 sums of 16 columns are 96 to 128 registers, so 512 threads a multiprocessor. Rows of 2 KB and less go to a warp each, 8 of a
    block, which adds its warps' sums before it writes them; longer ones have 2 vectors a thread, or 4 where 512 threads must hold more.
    Two rows of each tensor wait or arrive: 64 KB a multiprocessor and more from N = 2048 on."""
    size = call["x"].shape[-1] * call["x"].itemsize
    if size <= 2048:
        return {"vecs": 2 if size <= 1024 else 4, "threads": 256, "stages": 2, "per": 2}
    return {"vecs": 2, "threads": 256, "stages": 2, "per": max(1, 512 // max(64, size // 32))}


def _clusters(most):
    def refuse(call):
        longest = 8 * 1024 * most * 16 // call["x"].itemsize
        n = call["x"].shape[-1]
        if n > longest:
            return f"N={n} is longer than the {longest} columns that 8 blocks of 1024 threads hold"
        return _even(call) or no_clusters(call["x"])

    return refuse


def _shared_by_blocks(call):
    return _even(call) or too_wide(call["x"], wide_hold(call["x"])) or no_clusters(call["x"])


def _room(call):
    x = call["x"]
    return _shared_by_blocks(call) or no_room(x, _beside(x, call["weight"], call["bias"]))


def _room_backward(call):
    x = call["x"]
    return _even(call) or too_wide(x, sums_hold(x)) or no_clusters(x) or no_room(x, _beside(x, call["weight"]), 2)


def _alone(call):
    size = call["x"].shape[-1] * call["x"].itemsize
    return f"a row of {size} bytes fits one block with another beside it" if size < 1 << 16 else None


def pick_share(call):
    """Parts of 16 KB, of which two share a multiprocessor, each with two rows more on their way and its parameters: 64 KB in flight, three
    times what latency wants. Of rows above 128 KB, which 8 blocks share, parts are larger."""
    size = call["x"].shape[-1] * call["x"].itemsize
    if size <= ALONE:
        return {"cluster": 1, "vecs": 4, "stages": 2, "per": 2}
    return {"cluster": 4 if size <= 1 << 16 else 8, "vecs": 4, "stages": 2, "per": 2}


def pick_share_backward(call):
    """One block a multiprocessor, in which a row is worked on while others are on their way: each block writes a row of partial sums."""
    size = call["x"].shape[-1] * call["x"].itemsize
    if size <= ALONE:
        return {"cluster": 1, "vecs": 2, "stages": 2, "per": 1}
    return {"cluster": 4 if size <= 1 << 16 else 8, "vecs": 2, "stages": 4, "per": 1}


def pick_cluster(call):
    """Parts of 32 KB, so that two blocks and their parts of the parameters share a multiprocessor, the latter in L1."""
    size = call["x"].shape[-1] * call["x"].itemsize
    if size <= ALONE:
        return {"cluster": 1, "vecs": 4, "stages": 1, "per": 4}
    return {"cluster": 2 if size <= 1 << 16 else 4 if size <= 1 << 17 else 8, "vecs": 4, "stages": 1, "per": 2}


def pick_cluster_backward(call):
    """Parts of 32 KB of each tensor: one block of 512 threads with 4 vectors each, whose sums take 128 registers, and two rows under way."""
    size = call["x"].shape[-1] * call["x"].itemsize
    if size <= ALONE:
        return {"cluster": 1, "vecs": 2, "stages": 2, "per": 1}
    return {"cluster": 2 if size <= 1 << 16 else 4 if size <= 1 << 17 else 8, "vecs": 4, "stages": 2, "per": 1}


REGISTERS = ({"vecs": 4}, {"vecs": 2}, {"vecs": 8})
SHORT = ({"vecs": 4, "threads": 128}, {"vecs": 2, "threads": 128}, {"vecs": 8, "threads": 128}, {"vecs": 4, "threads": 256})
PIPELINE = tuple(
    {"vecs": v, "threads": 128, "stages": s, "per": p}
    for v, s, p in (
        (4, 1, 2), (4, 1, 5), (4, 1, 10), (4, 1, 32), (2, 2, 5), (2, 2, 10), (8, 1, 1), (8, 1, 2), (8, 1, 4), (8, 1, 8), (4, 2, 2), (8, 2, 1)
    )
)  # fmt: skip
CLUSTER = tuple(
    {"cluster": c, "vecs": v, "stages": s, "per": p}
    for c, v, s, p in ((2, 4, 1, 2), (2, 8, 1, 2), (4, 4, 1, 2), (4, 4, 1, 4), (8, 4, 1, 4), (8, 4, 2, 2), (8, 2, 1, 4))
)
SHARE = (
    *({"cluster": c, "vecs": v, "stages": s, "per": p} for c, v, s, p in (
        (8, 4, 2, 2), (8, 4, 4, 2), (8, 8, 1, 4), (8, 4, 2, 4), (4, 8, 1, 2), (4, 4, 1, 2), (4, 4, 4, 1), (4, 8, 4, 1), (2, 8, 1, 1), (2, 4, 1, 1),
    )),
    {"cluster": 4, "vecs": 8, "stages": 1, "per": 2, "stay": False},
)  # fmt: skip
SHARE_BACKWARD = tuple(
    {"cluster": c, "vecs": v, "stages": s, "per": p}
    for c, v, s, p in ((8, 2, 4, 1), (8, 2, 6, 1), (8, 2, 3, 1), (8, 2, 3, 2), (8, 4, 3, 2), (8, 4, 2, 2), (4, 4, 2, 1), (4, 2, 2, 1))
)
CLUSTER_BACKWARD = tuple(
    {"cluster": c, "vecs": v, "stages": s, "per": p}
    for c, v, s, p in ((2, 4, 2, 1), (4, 4, 2, 1), (8, 4, 2, 1), (8, 2, 2, 1), (8, 2, 2, 2), (8, 4, 1, 2))
)
BACKWARD_PIPELINE = tuple(
    {"vecs": v, "threads": 256, "stages": s, "per": p}
    for v, s, p in ((4, 2, 1), (4, 2, 2), (1, 2, 1), (1, 2, 2), (1, 3, 1), (2, 2, 1), (2, 2, 2), (2, 3, 1), (2, 3, 2), (2, 2, 4), (2, 2, 8))
)

ELSEWHERE = Limits(spill_bytes_elsewhere=256)  # the bounds on threads are set for sm_90; sm_100 wants a few registers more for two sums

ALL = Limits(shared_bytes=227 * 1024)

FORWARD = (
    Kernel("cuda.v9_bulk", bulk, "copies of 4 KB by the engine, the parameters stay", _room, SHARE, pick_share, sources=(V9,), declines=_alone,
           limits=ALL, architectures=(90,)),
    Kernel("cuda.v8_exchange", exchange, "blocks of a cluster wait for numbers alone, once a row", _shared_by_blocks, SHARE, pick_share, sources=(V8,),
           declines=_alone, limits=ALL, architectures=(90,)),
    Kernel("cuda.v7_cluster", cluster, "a cluster of blocks a row", _clusters(8), CLUSTER, pick_cluster, sources=(V7,), limits=ELSEWHERE, declines=_alone),
    Kernel("cuda.v6_pipeline", pipeline, "row after row a block, the next ones in flight", _upto(8), PIPELINE, pick_pipeline,
           sources=(V6,), limits=ELSEWHERE),
    Kernel("cuda.v5_rows", short_rows, "several short rows a block, no barrier", _short, SHORT, sources=(V5,)),
    Kernel("cuda.v4_register_row", register_row, "the row in registers: one read", _upto(8), REGISTERS,
           lambda call: REGISTERS[0] if wider_than(call["x"], 4) is None else REGISTERS[2], sources=(V4,), limits=ELSEWHERE),
    Kernel("cuda.v3_vector", vector, "16 bytes an access", _even, sources=(V3,)),
    Kernel("cuda.v2_warp", warp, "sums through shuffles", _serial(4096), sources=(V2,)),
    Kernel("cuda.v1_naive", naive, "a block a row, sums halved in shared memory", _serial(4096), sources=(V1,)),
)  # fmt: skip
BACKWARD = (
    Kernel("cuda.v9_bulk", bulk_backward, "copies of 4 KB by the engine, the weight stays", _room_backward, SHARE_BACKWARD, pick_share_backward,
           sources=(V9, ADD_ROWS), declines=_alone, limits=ALL, architectures=(90,)),
    Kernel("cuda.v7_cluster", cluster_backward, "a cluster of blocks a row", _clusters(2), CLUSTER_BACKWARD, pick_cluster_backward,
           sources=(V7, ADD_ROWS), limits=ELSEWHERE, declines=_alone),
    Kernel("cuda.v6_pipeline", pipeline_backward, "row after row, the parameters' gradients in registers", _upto(2), BACKWARD_PIPELINE,
           pick_backward, sources=(V6, ADD_ROWS)),
    Kernel("cuda.v1_naive", naive_backward, "a block a row, then a thread a column", _wider_than_one, sources=(V1,)),
)  # fmt: skip
