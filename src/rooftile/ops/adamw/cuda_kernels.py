"""AdamW and the norm of gradients in CUDA C++, over the tables of addresses that the Triton kernels use."""

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, resident
from rooftile.ops._shared.tables import tables

V1, V2, V3, N1, N2, V6, ROOT = (
    Source.beside(__file__, f"{name}.cu")
    for name in ("v1_naive", "v2_vector", "v3_pipeline", "v4_norm", "v5_norm_vector", "v6_once", "root")
)
MANY, SHARE = 2**15, 2**12  # parts that one block sums, and a block of several
LISTS = ("params", "grads", "exp_avgs", "exp_avg_sqs", "masters")


def _flag(value):
    return "true" if value else "false"


def _adamw(source, shape, measured=False):
    """`shape(x, chunks, config)`: template arguments after the types and flags, blocks, threads, shared memory, arguments at the end. `measured`: with
    the norm of the gradients as they are read, for which each block leaves a sum; v1 has none."""

    def adamw(params, grads, exp_avgs, exp_avg_sqs, masters, hyper, scale, seed, beta1, beta2, eps, *, config=None):
        hyper = hyper.contiguous()
        grads = [g if g.is_contiguous() else g.contiguous() for g in grads]
        lists = (params, grads, exp_avgs, exp_avg_sqs, *([masters] if masters else []))
        chunk = _chunk(config or {}, *(t[0] for t in lists))
        addresses, layout, chunks, _ = tables(chunk, *lists)
        p, g, s = params[0], grads[0], exp_avgs[0]
        types = ", ".join(CTYPE[t.dtype] for t in (p, g, s, masters[0] if masters else p))
        stochastic = seed is not None and p.itemsize == 2
        template, blocks, threads, shared, more = shape(p, chunks, config)
        if source is not V1:
            template, partial = f"{template}, {_flag(measured)}", hyper.new_empty(blocks) if measured else hyper
            more = (partial, *more)
        launch(source, f"adamw<{types}, {_flag(masters)}, {_flag(stochastic)}{template}>", blocks, threads, addresses, layout, hyper,
               hyper if scale is None else scale, layout if seed is None else seed, len(params), chunk, scale is not None, beta1, beta2,
               1 - beta1, 1 - beta2, eps, *more, shared=shared, reaches=[t for tensors in lists for t in tensors])  # fmt: skip
        return _root(partial) if measured else None

    return adamw


def _chunk(config, *tensors):
    """Elements of a chunk: the config's, or `steps` times what its threads take at once, `vecs` vectors each of the widest tensor."""
    if "steps" not in config:
        return config.get("chunk", 2048)
    return config["steps"] * config["vecs"] * config["threads"] * 16 // max(t.itemsize for t in tensors)


def _root(partial):
    norm, parts = partial.new_empty(()), len(partial)
    if parts > MANY:  # one multiprocessor would read 100 GB/s
        partial, all_parts = partial.new_empty(cdiv(parts, SHARE)), partial
        launch(ROOT, "shares", len(partial), 256, partial, all_parts, parts, SHARE)
    launch(ROOT, "root", 1, 512, norm, partial, len(partial))  # beside six blocks of 256
    return norm


def _plain(x, chunks, config):
    return "", chunks, 256, 0, ()


def _vector(x, chunks, config):
    return f", {config['vecs']}, {config['threads']}, {_flag(config['once'])}", chunks, config["threads"], 0, ()


def _once(x, chunks, config):
    steps = config["steps"]
    return f", {config['vecs']}, {config['threads']}, {steps}", chunks * steps, config["threads"], 0, ()


def _pipeline(x, chunks, config):
    stages, block = config["stages"], config["threads"]
    template = f", {stages}, {block}, {_flag(config['once'])}"
    return template, min(chunks, resident(x, config["per"])), block, 64 * stages * block, (chunks,)


def _norm(source, template, blocks, block, chunk, grads):
    grads = [g if g.is_contiguous() else g.contiguous() for g in grads]
    addresses, layout, chunks, _ = tables(chunk, grads)
    parts = max(1, min(chunks, resident(grads[0], blocks)))
    partial = layout.new_empty(parts, dtype=torch.float32)
    launch(source, f"squares<{CTYPE[grads[0].dtype]}{template}>", parts, block, partial, addresses, layout, len(grads), chunks, chunk,
           reaches=grads)  # fmt: skip
    return _root(partial)


def norm(grads):
    return _norm(N1, "", 8, 256, 4096, grads)


def norm_vector(grads, *, config):
    vecs, block = config["vecs"], config["threads"]
    return _norm(N2, f", {vecs}, {block}", config["per"], block, vecs * block * 16 // grads[0].itemsize, grads)


def _any(call):
    if why := off_gpu(call["hyper"]):
        return why
    loose = [i for n in LISTS if n != "grads" for i, t in enumerate(call[n]) if not t.is_contiguous()]
    return f"tensor {loose[0]} is not contiguous, and it is updated in place" if loose else None


def _past(call):
    """Why some tensor cannot be read 16 bytes at a time, or None. Gradients that are not contiguous will be copied, and copies begin well."""
    for name in LISTS:
        for i, t in enumerate(call.get(name, ())):
            past = t.data_ptr() % 16 if t.is_contiguous() and t.numel() and not isinstance(t, FakeTensor) else 0
            if past:
                return f"{name}[{i}] begins {past} bytes past a multiple of 16, and it reads 16 bytes at a time"
    return None


def pick(call):
    """128 KB in flight a multiprocessor. Chunks of 8192: runs of 16 to 32 KB in each of the seven streams; of a small model shorter ones,
    so that each block has one."""
    return PIPELINE[0] if sum(t.numel() for t in call["params"]) >= 1 << 22 else PIPELINE[1]


VECTOR = tuple(
    {"vecs": v, "threads": t, "chunk": c, "once": o}
    for v, t, c, o in ((1, 256, 4096, False), (2, 128, 4096, False), (2, 256, 8192, False), (2, 256, 8192, True), (1, 512, 16384, False), (2, 512, 16384, False))
)  # fmt: skip
# At most 512 threads a multiprocessor: registers for so many are sure, and a block of a grid that stays must not wait for one that never ends.
PIPELINE = tuple(
    {"stages": s, "threads": t, "per": p, "chunk": c, "once": o}
    for s, t, p, c, o in (
        (4, 256, 2, 8192, False),
        (4, 256, 2, 2048, False),
        (4, 256, 2, 8192, True),
        (6, 256, 2, 8192, False),
        (3, 256, 2, 16384, False),
        (4, 512, 1, 32768, False),
        (6, 128, 4, 4096, False),
        (6, 256, 2, 8192, True),
    )
)
ONCE = tuple({"vecs": v, "threads": t, "steps": 16} for v, t in ((2, 128), (1, 256), (1, 128), (2, 256)))
SQUARES = tuple(
    {"vecs": v, "threads": t, "per": p} for v, t, p in ((4, 256, 6), (4, 256, 4), (2, 256, 8), (4, 512, 3), (8, 256, 3), (4, 128, 12))
)


def _drawn(call):
    """Random bits are some 60 instructions an element: blocks that stay make them while their next tiles arrive."""
    return "stochastic rounding: its random bits are made while tiles arrive in cuda.v3_pipeline" if call["seed"] is not None else None


def _vectors(measured, *more):
    return (
        Kernel("cuda.v6_once", _adamw(V6, _once, measured), "a step a block: blocks come, read, write and leave",
               lambda call: _any(call) or _past(call), ONCE, sources=(V6, *more)),
        Kernel("cuda.v3_pipeline", _adamw(V3, _pipeline, measured), "blocks that stay, the next steps of all tensors in flight",
               lambda call: _any(call) or _past(call), PIPELINE, pick, sources=(V3, *more)),
        Kernel("cuda.v2_vector", _adamw(V2, _vector, measured), "16 bytes an access, several in flight", lambda call: _any(call) or _past(call),
               VECTOR, sources=(V2, *more), declines=_drawn),
    )  # fmt: skip


FORWARD = (*_vectors(False), Kernel("cuda.v1_naive", _adamw(V1, _plain), "a block a chunk, an element an access", _any, sources=(V1,)))
MEASURED = _vectors(True, ROOT)
NORM = (
    Kernel("cuda.v5_norm_vector", norm_vector, "16 bytes an access, a chunk in flight and the next one's address",
           lambda call: off_gpu(call["grads"][0]) or _past(call), SQUARES, sources=(N2, ROOT)),
    Kernel("cuda.v4_norm", norm, "blocks that stay, an element an access", lambda call: off_gpu(call["grads"][0]), sources=(N1, ROOT)),
)  # fmt: skip
