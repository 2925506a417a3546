"""Softmax in CUDA C++: from a thread a row to rows that arrive while the one before them is written."""

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_rows import ALONE, PARK, alone, any_row, clustered, clusters, deal, even, long_sums, threads, upto
from rooftile.ops._shared.cuda_shares import ALL, MEMORY, VISIT, VISIT_BACKWARD, beside_rows, pick_visit, visit, visits
from rooftile.ops._shared.few_rows import for_many
from rooftile.ops._shared.launch import cdiv, dense_like, power_of_2, row, rows

V1, V2, V3, V4, V5, V6, V7, V8, V9 = (
    Source.beside(__file__, f"{name}.cu")
    for name in (
        "v1_thread_row",
        "v2_warp_row",
        "v3_block_row",
        "v4_vector",
        "v5_online",
        "v6_pipeline",
        "v7_cluster",
        "v8_exchange",
        "v9_ahead",
    )
)

WARP = 32


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
    return by_block(x, f"softmax<{CTYPE[x.dtype]}>")


def by_block(x, instance, *form):
    """Any form of softmax; `form` is what its kernel takes beside the rows."""
    out = dense_like(x)
    x, m, n, stride = rows(x)
    launch(V3, instance, m, threads(n, 16), out, x, *form, n, stride)
    return out


def block_row_backward(dout, out):
    return by_block_backward(dout, out, "SoftmaxGradient, false")


def by_block_backward(dout, out, gradient, t=1, scale=1.0):
    """`gradient`: whose, and whether rows, t of them one after another, are causal."""
    dx = dense_like(out)
    dout, m, n, stride_dout = rows(dout)
    out, _, _, stride_out = rows(out)
    launch(V3, f"softmax_backward<{CTYPE[out.dtype]}, {gradient}>", m, threads(n, 16), dx, dout, out, n, stride_dout, stride_out, t, scale)
    return dx


def vector(x, *, config):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    flight = config["flight"]
    launch(V4, f"softmax<{CTYPE[x.dtype]}, {flight}>", m, threads(n * x.itemsize, 16 * flight), out, x, n, stride)
    return out


def online(x, *, config):
    return by_reading_once(x, f"softmax<{CTYPE[x.dtype]}", config)


def by_reading_once(x, instance, config, first=(), last=()):
    """Any form of softmax: a part of a warp a row where that leaves it `each` vectors a thread, else a block."""
    out = dense_like(x)
    x, m, n, stride = rows(x)
    width = 16 // x.itemsize
    vectors, each = n // width, config["each"]
    lanes = max(8, power_of_2(cdiv(vectors, each)))
    if lanes <= WARP:
        block, held, parked = config["threads"], 0, vectors
        blocks, shared = cdiv(m, block // lanes), 16 * parked * (block // lanes)
    else:
        lanes, held, block, blocks = 0, config["held"], threads(n, each * width), m
        parked = min(vectors, config["park"] // 16)
        held, shared = held if vectors > parked else 0, 16 * parked
    launch(V5, f"{instance}, {lanes}, {held}>", blocks, block, out, x, *first, m, n, stride, parked, *last, shared=shared)
    return out


def pipeline(x, *, config):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    d = deal(x, config)
    launch(V6, f"softmax<{CTYPE[x.dtype]}, {d.instance}>", d.blocks(x, m), d.threads, out, x, m, n, stride, shared=d.shared())
    return out


def pipeline_backward(dout, out, *, config):
    return by_rows_backward(dout, out, "SoftmaxGradient, false", config)


def by_rows_backward(dout, out, gradient, config, t=1, scale=1.0):
    """`gradient`: whose, and whether rows, t of them one after another, are causal."""
    dx = dense_like(out)
    dout, m, n, stride_dout = rows(dout)
    out, _, _, stride_out = rows(out)
    d = deal(out, config, tensors=2, most=4)
    instance = f"softmax_backward<{CTYPE[out.dtype]}, {gradient}, {d.instance}>"
    launch(V6, instance, d.blocks(out, m), d.threads, dx, dout, out, m, n, stride_dout, stride_out, t, scale, shared=d.shared(2))
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


def exchange(x, *, config):
    return by_visits(x, "softmax", config)


def by_visits(x, name, config):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    v = visit(x, config, lambda vecs: 16 + 8 * vecs, 512)
    instance = f"{name}<{CTYPE[x.dtype]}, {v.cluster}, {v.vecs}, {v.threads}, {v.per}>"
    launch(V8, instance, m * v.cluster, v.threads, out, x, n, stride)
    return out


def ahead(x, *, config):
    return by_asking(x, "softmax", config)


def by_asking(x, name, config):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    v = visit(x, config, lambda vecs: 64, 512)
    part = 16 * v.vecs * v.threads
    per = max(1, min(v.per, MEMORY // (part + beside_rows(v.cluster, v.threads))))
    instance = f"{name}<{CTYPE[x.dtype]}, {v.cluster}, {v.vecs}, {v.threads}, {per}>"
    launch(V9, instance, m * v.cluster, v.threads, out, x, n, stride, shared=part)
    return out


def exchange_backward(dout, out, *, config):
    return by_visits_backward(dout, out, "SoftmaxGradient", config)


def by_visits_backward(dout, out, gradient, config):
    dx = dense_like(out)
    dout, m, n, stride_dout = rows(dout)
    out, _, _, stride_out = rows(out)
    v = visit(out, config, lambda vecs: 16 + 8 * vecs, 1024)
    instance = f"softmax_backward<{CTYPE[out.dtype]}, {gradient}, {v.cluster}, {v.vecs}, {v.threads}, {v.per}>"
    launch(V8, instance, m * v.cluster, v.threads, dx, dout, out, n, stride_dout, stride_out)
    return dx


def parked(call):
    """Why v5_online.cu does sooner, or None."""
    size = row(call).shape[-1] * row(call).itemsize
    return f"a row of {size} bytes is parked in one block" if size <= 1 << 17 else None


def pick_cluster(call):
    """Parts of 64 KB forward, so that two blocks of 512 threads share a multiprocessor: 512 x 8 vectors. Backward 2 tensors of 32 KB each."""
    size = row(call).shape[-1] * row(call).itemsize * (2 if "dout" in call else 1)
    if size <= ALONE * 2:
        return {"cluster": 1, "vecs": 4, "stages": 1, "per": 4}
    return {"cluster": 2 if size <= 1 << 17 else 4 if size <= 1 << 18 else 8, "vecs": 4 if "dout" in call else 8, "stages": 1, "per": 2}


def pick_online(call):
    """Two blocks a multiprocessor where a row leaves room for them: while one waits for its row the other writes. A row that shared memory
    does not hold waits in registers too: 6 vectors of 1024 threads are 96 KB."""
    return ONLINE[0] if row(call).shape[-1] * row(call).itemsize <= 110 * 1024 else ONLINE[1]


def pick_pipeline(call):
    """About 100 KB in flight a multiprocessor, four times what the latency of memory asks for: 16 bytes x 4 vectors x 1536 threads. A row
    of 32 KB or more takes 8 vectors a thread, so that two blocks of it fit the registers and one reduces while the other writes. Rows
    that share a block are taken one after another by blocks of few warps, of which the hardware keeps as many as it can."""
    size = row(call).shape[-1] * row(call).itemsize * (2 if "dout" in call else 1)
    if size <= 2048:
        return {"vecs": 4, "threads": 128, "stages": 1, "per": 12}
    if size <= 32 * 1024:
        lanes = max(32, size // 64)
        return {"vecs": 4, "threads": 128, "stages": 1, "per": max(2, 1536 // lanes)}
    return {"vecs": 8, "threads": 128, "stages": 1, "per": 2 if size <= 64 * 1024 else 1}


ONLINE = tuple(
    {"park": p * 1024, "each": e, "held": h, "threads": t}
    for p, e, h, t in (
        (110, 4, 0, 128),
        (PARK // 1024, 8, 6, 128),
        (PARK // 1024, 8, 0, 128),
        (110, 8, 0, 128),
        (74, 8, 0, 128),
        (110, 2, 0, 256),
        (110, 4, 0, 64),
        (110, 8, 0, 64),
    )
)
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

AHEAD = tuple({"cluster": c, "vecs": v, "per": p} for c, v, p in ((8, 8, 4), (2, 4, 2), (8, 16, 6), (4, 8, 4), (2, 8, 4), (8, 4, 4)))


def pick_exchange(call):
    """As `pick_visit`, but of one block nobody is told anything."""
    config = pick_visit(call)
    return {**config, "cluster": max(2, config["cluster"])}


def pick_ahead(call):
    """Parts of 32 KB: four blocks of 256 threads a multiprocessor, or where two are a row two of 512. Simulated: four blocks a row."""
    config = pick_exchange(call)
    if not row(call).is_cuda:
        return config
    return AHEAD[1] if config["cluster"] == 2 else {**config, "per": 4}


FORWARD = for_many(
    Kernel(
        "cuda.v9_ahead",
        ahead,
        "the row in shared memory by the copy engine, a block more a multiprocessor",
        visits(16 * 512),
        AHEAD,
        pick_ahead,
        sources=(V9,),
        limits=ALL,
        declines=alone,
        architectures=(90,),
    ),
    Kernel(
        "cuda.v8_exchange",
        exchange,
        "blocks of a cluster wait for numbers alone, each exponential once",
        visits(8 * 512),
        VISIT,
        pick_exchange,
        sources=(V8,),
        declines=parked,
    ),
    Kernel(
        "cuda.v7_cluster",
        cluster,
        "a cluster of blocks a row",
        clusters(8),
        CLUSTER,
        pick_cluster,
        sources=(V7,),
        declines=alone,
        limits=Limits(spill_bytes_elsewhere=8),
    ),
    Kernel("cuda.v6_pipeline", pipeline, "row after row a block, the next ones in flight", upto(8), PIPELINE, pick_pipeline, sources=(V6,)),
    Kernel("cuda.v5_online", online, "one read: running maximum and sum, the row parked", even, ONLINE, pick_online, sources=(V5,)),
    Kernel(
        "cuda.v4_vector",
        vector,
        "16 bytes an access, several in flight",
        even,
        ({"flight": 4}, {"flight": 2}, {"flight": 8}),
        sources=(V4,),
    ),
    Kernel("cuda.v3_block_row", block_row, "a block a row", any_row, sources=(V3,)),
    Kernel("cuda.v2_warp_row", warp_row, "a warp a row", any_row, sources=(V2,)),
    Kernel("cuda.v1_thread_row", thread_row, "a thread a row", lambda call: any_row(call) or long_sums(call["x"], 65536), sources=(V1,)),
)
BACKWARD = (
    Kernel("cuda.v8_exchange", exchange_backward, "blocks of a cluster wait for numbers alone", visits(4 * 1024), VISIT_BACKWARD, pick_exchange,
           sources=(V8,), declines=alone),
    Kernel("cuda.v7_cluster", cluster_backward, "a cluster of blocks a row", clusters(4), CLUSTER_BACKWARD, pick_cluster, sources=(V7,), declines=alone),
    Kernel("cuda.v6_pipeline", pipeline_backward, "row after row a block, the next ones in flight", upto(4), PIPELINE, pick_pipeline,
           sources=(V6,)),
    Kernel("cuda.v3_block_row", block_row_backward, "a block a row, two reads", any_row, sources=(V3,)),
)  # fmt: skip
