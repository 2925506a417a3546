"""Softmax in CUDA C++: from a thread a row to rows that arrive while the one before them is written."""

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_rows import (
    ALONE,
    PARK,
    Hold,
    clustered,
    deal,
    long_sums,
    no_clusters,
    share,
    threads,
    too_long,
    too_wide,
    uneven,
    wide_hold,
    wider_than,
)
from rooftile.ops._shared.launch import cdiv, dense_like, rows

V1, V2, V3, V4, V5, V6, V7, V8, V9 = (
    Source.beside(__file__, f"{name}.cu")
    for name in (
        "v1_thread_row", "v2_warp_row", "v3_block_row", "v4_vector", "v5_online", "v6_pipeline", "v7_cluster", "v8_exchange", "v9_bulk",
    )
)  # fmt: skip


def thread_row(x):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    launch(V1, f"softmax<{CTYPE[x.dtype]}>", cdiv(m, 128), 128, out, x, m, n, stride)
    return out


def warp_row(x):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    launch(V2, f"softmax<{CTYPE[x.dtype]}>", cdiv(m, 8), 256, out, x, m, n, stride)
    return out


def block_row(x):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    launch(V3, f"softmax<{CTYPE[x.dtype]}>", m, threads(n, 16), out, x, n, stride)
    return out


def block_row_backward(dout, out):
    dx = dense_like(out)
    dout, m, n, stride_dout = rows(dout)
    out, _, _, stride_out = rows(out)
    launch(V3, f"softmax_backward<{CTYPE[out.dtype]}>", m, threads(n, 16), dx, dout, out, n, stride_dout, stride_out)
    return dx


def vector(x, *, config):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    flight = config["flight"]
    launch(V4, f"softmax<{CTYPE[x.dtype]}, {flight}>", m, threads(n * x.itemsize, 16 * flight), out, x, n, stride)
    return out


def online(x, *, config):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    width = 16 // x.itemsize
    parked = min(n // width, config["park"] // 16)
    block = threads(n, config["each"] * width)
    launch(V5, f"softmax<{CTYPE[x.dtype]}>", m, block, out, x, n, stride, parked, shared=16 * parked)
    return out


def pipeline(x, *, config):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    d = deal(x, config)
    launch(V6, f"softmax<{CTYPE[x.dtype]}, {d.instance}>", d.blocks(x, m), d.threads, out, x, m, n, stride, shared=d.shared())
    return out


def pipeline_backward(dout, out, *, config):
    dx = dense_like(out)
    dout, m, n, stride_dout = rows(dout)
    out, _, _, stride_out = rows(out)
    d = deal(out, config, tensors=2, most=4)
    instance = f"softmax_backward<{CTYPE[out.dtype]}, {d.instance}>"
    launch(V6, instance, d.blocks(out, m), d.threads, dx, dout, out, m, n, stride_dout, stride_out, shared=d.shared(2))
    return dx


def cluster(x, *, config):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    instance, blocks, block, shared = clustered(x, m, config)
    launch(V7, f"softmax<{CTYPE[x.dtype]}, {instance}>", blocks, block, out, x, m, n, stride, shared=shared)
    return out


def cluster_backward(dout, out, *, config):
    dx = dense_like(out)
    dout, m, n, stride_dout = rows(dout)
    out, _, _, stride_out = rows(out)
    instance, blocks, block, shared = clustered(out, m, config, tensors=2)
    instance = f"softmax_backward<{CTYPE[out.dtype]}, {instance}>"
    launch(V7, instance, blocks, block, dx, dout, out, m, n, stride_dout, stride_out, shared=shared)
    return dx


def _shared_row(source):
    def run(x, *, config):
        out = dense_like(x)
        x, m, n, stride = rows(x)
        s = share(x, config, wide_hold(x))
        instance = f"softmax<{CTYPE[x.dtype]}, {s.instance}>"
        launch(source, instance, s.blocks(x, m, source, instance), s.threads, out, x, m, n, stride, shared=s.shared)
        return out

    return run


BOTH = Hold(4, 8)  # two tensors as they came: 8 registers a vector


def bulk_backward(dout, out, *, config):
    dx = dense_like(out)
    dout, m, n, stride_dout = rows(dout)
    out, _, _, stride_out = rows(out)
    s = share(out, config, BOTH, tensors=2)
    instance = f"softmax_backward<{CTYPE[out.dtype]}, {s.instance}>"
    launch(V9, instance, s.blocks(out, m, V9, instance), s.threads, dx, dout, out, m, n, stride_dout, stride_out, shared=s.shared)
    return dx


exchange, bulk = _shared_row(V8), _shared_row(V9)


def _row(call):
    return call["x"] if "x" in call else call["out"]


def _any(call):
    return off_gpu(_row(call)) or too_long(_row(call))


def _even(call):
    return _any(call) or uneven(call)


def _upto(most):
    return lambda call: _even(call) or wider_than(_row(call), most)


def _clusters(most):
    def refuse(call):
        x = _row(call)
        longest = 8 * 1024 * most * 16 // x.itemsize
        if x.shape[-1] > longest:
            return _any(call) or f"N={x.shape[-1]} is longer than the {longest} columns that 8 blocks of 1024 threads hold"
        return _even(call) or no_clusters(x)

    return refuse


def _shared_by_blocks(call):
    x = _row(call)
    return _even(call) or too_wide(x, BOTH if "dout" in call else wide_hold(x)) or no_clusters(x)


def _alone(call):
    size = _row(call).shape[-1] * _row(call).itemsize
    return f"a row of {size} bytes fits one block with another beside it" if size < 1 << 16 else None


def pick_cluster(call):
    """Parts of 64 KB forward, so that two blocks of 512 threads share a multiprocessor: 512 x 8 vectors. Backward 2 tensors of 32 KB each."""
    size = _row(call).shape[-1] * _row(call).itemsize * (2 if "dout" in call else 1)
    if size <= ALONE * 2:
        return {"cluster": 1, "vecs": 4, "stages": 1, "per": 4}
    return {"cluster": 2 if size <= 1 << 17 else 4 if size <= 1 << 18 else 8, "vecs": 4 if "dout" in call else 8, "stages": 1, "per": 2}


def pick_share(call):
    """Parts of 32 KB, of which two share a multiprocessor, each with two rows more on their way: 128 KB, six times what latency wants. Backward
    one row of both tensors."""
    size = _row(call).shape[-1] * _row(call).itemsize
    if size <= ALONE:
        return {"cluster": 1, "vecs": 4, "stages": 2, "per": 2}
    return {"cluster": 2 if size <= 1 << 16 else 4 if size <= 1 << 17 else 8, "vecs": 8, "stages": 2, "per": 2}


def pick_online(call):
    """Two blocks a multiprocessor where a row leaves room for them: while one waits for its row the other writes."""
    return ONLINE[0] if _row(call).shape[-1] * _row(call).itemsize <= 110 * 1024 else ONLINE[1]


def pick_pipeline(call):
    """About 100 KB in flight a multiprocessor, four times what the latency of memory asks for: 16 bytes x 4 vectors x 1536 threads. A row
    of 32 KB or more takes 8 vectors a thread, so that two blocks of it fit the registers and one reduces while the other writes. Rows
    that share a block are taken one after another by blocks of few warps, of which the hardware keeps as many as it can."""
    size = _row(call).shape[-1] * _row(call).itemsize * (2 if "dout" in call else 1)
    if size <= 2048:
        return {"vecs": 4, "threads": 128, "stages": 1, "per": 12}
    if size <= 32 * 1024:
        lanes = max(32, size // 64)
        return {"vecs": 4, "threads": 128, "stages": 1, "per": max(2, 1536 // lanes)}
    return {"vecs": 8, "threads": 128, "stages": 1, "per": 2 if size <= 64 * 1024 else 1}


ONLINE = ({"park": 110 * 1024, "each": 4}, {"park": PARK, "each": 8}, {"park": 110 * 1024, "each": 8}, {"park": 74 * 1024, "each": 8})
CLUSTER = tuple(
    {"cluster": c, "vecs": v, "stages": s, "per": p}
    for c, v, s, p in (
        (2, 4, 1, 2),
        (2, 8, 1, 2),
        (4, 4, 1, 2),
        (4, 4, 1, 4),
        (4, 8, 1, 2),
        (8, 4, 1, 2),
        (8, 4, 1, 4),
        (8, 8, 1, 4),
        (8, 4, 2, 2),
    )
)
SHARE = (
    *({"cluster": c, "vecs": v, "stages": s, "per": p} for c, v, s, p in (
        (8, 8, 1, 2), (8, 8, 2, 2), (8, 8, 3, 2), (8, 4, 1, 2), (8, 4, 2, 2), (8, 4, 4, 1), (4, 8, 1, 1), (4, 8, 2, 1), (4, 8, 3, 1),
    )),
    {"cluster": 8, "vecs": 8, "stages": 1, "per": 2, "stay": False},
    {"cluster": 4, "vecs": 8, "stages": 1, "per": 1, "stay": False},
)  # fmt: skip
SHARE_BACKWARD = (
    *({"cluster": c, "vecs": v, "stages": s, "per": p} for c, v, s, p in (
        (8, 8, 1, 2), (8, 4, 1, 2), (8, 4, 2, 1), (8, 4, 3, 1), (4, 8, 1, 1), (4, 4, 1, 1),
    )),
    {"cluster": 8, "vecs": 8, "stages": 1, "per": 2, "stay": False},
)  # fmt: skip
CLUSTER_BACKWARD = tuple(
    {"cluster": c, "vecs": v, "stages": s, "per": p}
    for c, v, s, p in ((2, 4, 1, 2), (4, 4, 1, 2), (4, 2, 1, 2), (4, 4, 1, 4), (8, 4, 1, 2), (8, 2, 1, 2), (8, 2, 1, 4), (8, 2, 2, 2))
)
PIPELINE = tuple(
    {"vecs": v, "threads": t, "stages": s, "per": p}
    for v, t, s, p in (
        (4, 128, 1, 8), (4, 128, 1, 12), (4, 128, 1, 32), (4, 256, 1, 6), (8, 128, 1, 8), (2, 128, 2, 12),
        (4, 128, 1, 4), (4, 128, 2, 4), (8, 128, 1, 4), (4, 128, 1, 2), (8, 128, 1, 2), (8, 128, 1, 3), (8, 128, 2, 1), (8, 128, 1, 1),
    )
)  # fmt: skip

ALL = Limits(shared_bytes=227 * 1024)
FORWARD = (
    Kernel(
        "cuda.v9_bulk",
        bulk,
        "copies of 4 KB by the engine",
        _shared_by_blocks,
        SHARE,
        pick_share,
        sources=(V9,),
        declines=_alone,
        limits=ALL,
        architectures=(90,),
    ),
    Kernel(
        "cuda.v8_exchange",
        exchange,
        "blocks of a cluster wait for numbers alone, each exponential once",
        _shared_by_blocks,
        SHARE,
        pick_share,
        sources=(V8,),
        declines=_alone,
        limits=ALL,
        architectures=(90,),
    ),
    Kernel(
        "cuda.v7_cluster",
        cluster,
        "a cluster of blocks a row",
        _clusters(8),
        CLUSTER,
        pick_cluster,
        sources=(V7,),
        declines=_alone,
        limits=Limits(spill_bytes_elsewhere=8),
    ),
    Kernel(
        "cuda.v6_pipeline", pipeline, "row after row a block, the next ones in flight", _upto(8), PIPELINE, pick_pipeline, sources=(V6,)
    ),
    Kernel("cuda.v5_online", online, "one read: running maximum and sum, the row parked", _even, ONLINE, pick_online, sources=(V5,)),
    Kernel(
        "cuda.v4_vector",
        vector,
        "16 bytes an access, several in flight",
        _even,
        ({"flight": 4}, {"flight": 2}, {"flight": 8}),
        sources=(V4,),
    ),
    Kernel("cuda.v3_block_row", block_row, "a block a row", _any, sources=(V3,)),
    Kernel("cuda.v2_warp_row", warp_row, "a warp a row", _any, sources=(V2,)),
    Kernel("cuda.v1_thread_row", thread_row, "a thread a row", lambda call: _any(call) or long_sums(call["x"], 65536), sources=(V1,)),
)
BACKWARD = (
    Kernel("cuda.v9_bulk", bulk_backward, "copies of 4 KB by the engine, waiting for numbers alone", _shared_by_blocks, SHARE_BACKWARD, pick_share, sources=(V9,),
           declines=_alone, limits=ALL, architectures=(90,)),
    Kernel("cuda.v7_cluster", cluster_backward, "a cluster of blocks a row", _clusters(4), CLUSTER_BACKWARD, pick_cluster, sources=(V7,), declines=_alone),
    Kernel("cuda.v6_pipeline", pipeline_backward, "row after row a block, the next ones in flight", _upto(4), PIPELINE, pick_pipeline,
           sources=(V6,)),
    Kernel("cuda.v3_block_row", block_row_backward, "a block a row, two reads", _any, sources=(V3,)),
)  # fmt: skip
