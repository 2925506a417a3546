"""Decoding in CUDA C++: the plain rung, for reading beside the others."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source

V1 = Source.beside(__file__, "v1_naive.cu")
BLOCK = 128


def _e4m3(q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap):
    b, t, h, d = q.shape
    (pages, page, g), paged = k_cache.shape[:3], block_table is not None
    q = q if q.stride(-1) == 1 else q.contiguous()
    out, lse = q.new_empty(b, t, h, d), q.new_empty(b, h, t, dtype=torch.float32)
    table, sink = lengths if block_table is None else block_table, q if sinks is None else sinks
    ks, vs = (lse if x is None else x for x in (k_scale, v_scale))
    instance = f"attention_decode<{CTYPE[q.dtype]}, {CTYPE[k_cache.dtype]}, {CTYPE[sink.dtype]}>"
    launch(V1, instance, b * t * h, BLOCK, out, lse, q, k_cache, v_cache, lengths, table, sink, ks, vs, t, h, g, d,
           table.shape[1] * page if paged else page, pages, page if paged else 0, window, int(sinks is not None), int(k_scale is not None),
           int(v_scale is not None), scale, softcap, *q.stride()[:3], *k_cache.stride()[:3], *v_cache.stride()[:3], lengths.stride(0),
           table.stride(0), table.stride(-1), sink.stride(0), ks.stride(0), vs.stride(0))  # fmt: skip
    return out, lse


def _plain(q, k_cache, v_cache, lengths, block_table, sinks, scale, window, softcap):
    return _e4m3(q, k_cache, v_cache, lengths, None, None, block_table, sinks, scale, window, softcap)


def _refuse(call):
    for name in ("k_cache", "v_cache"):
        if call[name].stride(-1) != 1:
            return f"the last axis of {name} has stride {call[name].stride(-1)}; a copy of the cache would cost more than the attention"
    return off_gpu(call["q"])


KERNELS = (Kernel("cuda.v1_naive", _plain, "a block a query and head", _refuse, sources=(V1,)),)
KERNELS_E4M3 = (Kernel("cuda.v1_naive", _e4m3, "a block a query and head", _refuse, sources=(V1,)),)
