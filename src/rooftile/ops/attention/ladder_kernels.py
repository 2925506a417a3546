"""Attention in CUDA C++ below Hopper's own rung: scores in memory, a row at a time, tiles in shared memory, tensor cores by mma.sync."""

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv
from rooftile.ops.attention.refusals import plain_heads

V1 = Source.beside(__file__, "v1_naive.cu")
V2 = Source.beside(__file__, "v2_online.cu")
V3 = Source.beside(__file__, "v3_tiled.cu")
V4 = Source.beside(__file__, "v4_mma.cu")
THREADS = 256
ROWS = THREADS // 8  # of a block, 8 lanes each
TILE = 64  # queries or keys of a tile
MOST_PAIRS = 2**29  # v1 keeps 4 bytes of each forward, 8 backward
LONGEST = 2**31  # pairs for v2: half a second of an H200


def _flat(*tensors):
    """Each as it lies where its last axis is dense, else a copy."""
    return [x if x.stride(-1) == 1 else x.contiguous() for x in tensors]


def _strides(*tensors):
    return [s for x in tensors for s in x.stride()[:3]]


def _empty(q):
    """out and lse."""
    b, t, h, _ = q.shape
    return q.new_empty(q.shape), q.new_empty(b, h, t, dtype=torch.float32)


# ---- v1 ----------------------------------------------------------------------------------------------------------------------


def naive(q, k, v, causal, scale):
    (b, t, h, d), s = q.shape, k.shape[1]
    (out, lse), (q, k, v), kind = _empty(q), _flat(q, k, v), CTYPE[q.dtype]
    p = q.new_empty(b, h, t, s, dtype=torch.float32)
    launch(V1, f"scores<{kind}>", cdiv(p.numel(), THREADS), THREADS, p, q, k, *_strides(q, k), p.numel(), h, t, s, d, scale, causal)
    launch(V1, "weights", cdiv(b * h * t, THREADS // 32), THREADS, p, lse, b * h * t, s)
    launch(V1, f"values<{kind}>", cdiv(q.numel(), THREADS), THREADS, out, p, v, *_strides(v), q.numel(), h, t, s, d, causal)
    return out, lse


def naive_backward(dout, q, k, v, out, lse, causal, scale):
    (b, t, h, d), s = q.shape, k.shape[1]
    (dout, q, k, v, out), lse, kind = _flat(dout, q, k, v, out), lse.contiguous(), CTYPE[q.dtype]
    dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    p, ds = (q.new_empty(b, h, t, s, dtype=torch.float32) for _ in range(2))
    delta, n = torch.empty_like(lse), p.numel()
    launch(V1, f"scores<{kind}>", cdiv(n, THREADS), THREADS, p, q, k, *_strides(q, k), n, h, t, s, d, scale, causal)
    launch(V1, f"deltas<{kind}>", cdiv(b * h * t, THREADS), THREADS, delta, dout, out, *_strides(dout, out), b * h * t, h, t, d)
    launch(V1, f"slopes<{kind}>", cdiv(n, THREADS), THREADS, p, ds, lse, delta, dout, v, *_strides(dout, v), n, h, t, s, d, scale, causal)
    launch(
        V1, f"keys<{kind}>", cdiv(k.numel(), THREADS), THREADS, dk, dv, p, ds, q, dout, *_strides(q, dout), k.numel(), h, t, s, d, causal
    )
    launch(V1, f"values<{kind}>", cdiv(q.numel(), THREADS), THREADS, dq, ds, k, *_strides(k), q.numel(), h, t, s, d, causal)
    return dq, dk, dv


# ---- v2 ----------------------------------------------------------------------------------------------------------------------


def _lanes(q):
    """Elements of a row that a lane holds, one of 8."""
    return 8 if q.shape[-1] <= 64 else 16


def online(q, k, v, causal, scale):
    (b, t, h, d), s = q.shape, k.shape[1]
    (out, lse), (q, k, v), rows = _empty(q), _flat(q, k, v), b * h * t
    kind = f"attention<{CTYPE[q.dtype]}, {_lanes(q)}>"
    launch(V2, kind, cdiv(rows, ROWS), THREADS, out, lse, q, k, v, *_strides(q, k, v), rows, h, t, s, d, scale, causal)
    return out, lse


def online_backward(dout, q, k, v, out, lse, causal, scale):
    (b, t, h, d), s = q.shape, k.shape[1]
    (dout, q, k, v, out), lse, kind = _flat(dout, q, k, v, out), lse.contiguous(), f"<{CTYPE[q.dtype]}, {_lanes(q)}>"
    dq, dk, dv, delta = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), torch.empty_like(lse)
    rows = b * h * t
    of_queries = (dout, q, k, v, out, *_strides(dout, q, k, v, out), rows, h, t, s, d, scale, causal)
    launch(V2, f"queries{kind}", cdiv(rows, ROWS), THREADS, dq, delta, lse, *of_queries)
    rows = b * h * s
    of_keys = (dout, q, k, v, *_strides(dout, q, k, v), rows, h, t, s, d, scale, causal)
    launch(V2, f"keys{kind}", cdiv(rows, ROWS), THREADS, dk, dv, delta, lse, *of_keys)
    return dq, dk, dv


# ---- v3 ----------------------------------------------------------------------------------------------------------------------


def _tiled(d, tiles):
    """Bytes of so many tiles of 64 rows and the weights, float32, lines 4 longer than they need."""
    return 4 * TILE * (tiles * (cdiv(d, 4) * 4 + 4) + TILE + 4)


def tiled(q, k, v, causal, scale):
    (b, t, h, d), s = q.shape, k.shape[1]
    (out, lse), (q, k, v), kind = _empty(q), _flat(q, k, v), f"attention<{CTYPE[q.dtype]}, {cdiv(d, 64)}>"
    strides = _strides(q, k, v)
    launch(V3, kind, cdiv(t, TILE) * b * h, THREADS, out, lse, q, k, v, *strides, h, t, s, d, scale, causal, shared=_tiled(d, 2))
    return out, lse


def tiled_backward(dout, q, k, v, out, lse, causal, scale):
    (b, t, h, d), s = q.shape, k.shape[1]
    (dout, q, k, v, out), lse, kind = _flat(dout, q, k, v, out), lse.contiguous(), f"<{CTYPE[q.dtype]}, {cdiv(d, 64)}>"
    dq, dk, dv, delta = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), torch.empty_like(lse)
    of_queries = (dout, q, k, v, out, *_strides(dout, q, k, v, out), h, t, s, d, scale, causal)
    launch(V3, f"queries{kind}", cdiv(t, TILE) * b * h, THREADS, dq, delta, lse, *of_queries, shared=_tiled(d, 4))
    of_keys = (dout, q, k, v, *_strides(dout, q, k, v), h, t, s, d, scale, causal)
    launch(V3, f"keys{kind}", cdiv(s, TILE) * b * h, THREADS, dk, dv, delta, lse, *of_keys, shared=_tiled(d, 4))
    return dq, dk, dv


# ---- v4 ----------------------------------------------------------------------------------------------------------------------


def _wide(d):
    return 64 if d <= 64 else 128


def mma(q, k, v, causal, scale):
    (b, t, h, d), s = q.shape, k.shape[1]
    (out, lse), (q, k, v), w = _empty(q), _flat(q, k, v), _wide(d)
    strides, kind = _strides(q, k, v), f"attention<{CTYPE[q.dtype]}, {w}, {TILE}>"
    launch(V4, kind, cdiv(t, TILE) * b * h, 128, out, lse, q, k, v, *strides, h, t, s, d, scale, causal, shared=5 * TILE * (w + 8) * 2)
    return out, lse


def mma_backward(dout, q, k, v, out, lse, causal, scale):
    (b, t, h, d), s = q.shape, k.shape[1]
    (dout, q, k, v, out), lse, w = _flat(dout, q, k, v, out), lse.contiguous(), _wide(d)
    dq, dk, dv, delta = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), torch.empty_like(lse)
    n = TILE * 64 // w  # rows of a step: the two sums of 128 columns leave registers for 32
    shared, kind = 2 * (TILE + 2 * n) * (w + 8) * 2, f"<{CTYPE[q.dtype]}, {w}, {n}>"
    of_queries = (dout, q, k, v, out, *_strides(dout, q, k, v, out), h, t, s, d, scale, causal)
    launch(V4, f"queries{kind}", cdiv(t, TILE) * b * h, 128, dq, delta, lse, *of_queries, shared=shared)
    of_keys = (dout, q, k, v, *_strides(dout, q, k, v), h, t, s, d, scale, causal)
    launch(V4, f"keys{kind}", cdiv(s, TILE) * b * h, 128, dk, dv, delta, lse, *of_keys, shared=shared + 2 * 2 * n * 4)
    return dq, dk, dv


# ---- who takes what ----------------------------------------------------------------------------------------------------------


def _pairs(call):
    (b, t, h, _), s = call["q"].shape, call["k"].shape[1]
    return b * h * t * s


def _too_many(call):
    if _pairs(call) > MOST_PAIRS:
        return f"{_pairs(call)} pairs of query and key, it keeps at most {MOST_PAIRS} in memory"
    return plain_heads(call) or off_gpu(call["q"])


def _too_long(call):
    if _pairs(call) > LONGEST:
        return f"{_pairs(call)} pairs of query and key, it goes through at most {LONGEST}, one after the other"
    return _up_to(128)(call)


def _up_to(most):
    def refuse(call):
        d = call["q"].shape[-1]
        return f"D={d}, it is written for at most {most}" if d > most else plain_heads(call) or off_gpu(call["q"])

    return refuse


def _refuse_mma(call):
    q, d = call["q"], call["q"].shape[-1]
    if q.dtype == torch.float32:
        return "its products are of 16-bit numbers, the tensor is float32"
    if d % 16 or not 0 < d <= 128:
        return f"D={d}, it is written for multiples of 16 up to 128"
    if plain_heads(call):
        return plain_heads(call)
    for n in ("dout", "q", "k", "v"):
        x = call.get(n)
        if x is None or x.stride(-1) != 1 or x.numel() == 0 or isinstance(x, FakeTensor):
            continue  # what is not dense will be copied, and copies are aligned
        if x.data_ptr() % 16 or any(s % 8 for s, size in zip(x.stride()[:3], x.shape) if size > 1):
            return f"{n} with strides {list(x.stride())} at {x.data_ptr() % 16} bytes past a multiple of 16 has rows that cp.async cannot copy 16 bytes at a time"
    return off_gpu(q)


FORWARD = (
    Kernel("cuda.v4_mma", mma, "tensor cores by mma.sync, tiles by cp.async two deep", _refuse_mma, sources=(V4,)),
    Kernel("cuda.v3_tiled", tiled, "tiles of 64 queries and 64 keys in shared memory", _up_to(128), sources=(V3,)),
    Kernel("cuda.v2_online", online, "8 lanes a row, running softmax: no score in memory", _too_long, sources=(V2,)),
    Kernel("cuda.v1_naive", naive, "the definition: scores in memory", _too_many, sources=(V1,)),
)
BACKWARD = (
    Kernel("cuda.v4_mma", mma_backward, "the same: scores once with queries and once with keys at home", _refuse_mma, sources=(V4,)),
    Kernel("cuda.v3_tiled", tiled_backward, "the same tiles: a pass of queries, a pass of keys", _up_to(128), sources=(V3,)),
    Kernel("cuda.v2_online", online_backward, "8 lanes a query, then 8 a key: no atomics", _too_long, sources=(V2,)),
    Kernel("cuda.v1_naive", naive_backward, "weights and their gradient in memory", _too_many, sources=(V1,)),
)
