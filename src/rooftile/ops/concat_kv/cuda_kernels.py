"""New keys and values into a cache, in CUDA C++: a thread a pair, and 16 bytes an access with a table row for several heads."""

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv
from rooftile.ops._shared.rotary import dense, scattered, uneven_heads
from rooftile.ops.concat_kv.reference import check_room

BLOCK = 256
LONGEST = 2**31 - 1  # keys of a sequence, by its pages: places are counted in an int
V1, V2 = (Source.beside(__file__, f"{name}.cu") for name in ("v1_naive", "v2_vector"))


def _launch(source, k_cache, v_cache, k, v, lengths, cos, sin, interleaved, block_table, k_scale, v_scale, each=0):
    check_room(lengths, k_cache, k.shape[1], cos, block_table)
    k, v, turned, paged = dense(k), dense(v), cos is not None, block_table is not None
    b, t, g, d = k.shape
    cos, sin = (dense(cos), dense(sin)) if turned else (k, k)
    if cos.dtype != sin.dtype:
        cos, sin = cos.float(), sin.float()
    n, width, page = cos.shape[1] if turned else 0, 16 // k.itemsize, k_cache.shape[1]
    lanes = g * (2 * d - n)
    if each:
        lanes = cdiv(g, each) * (n // (width // 2 if interleaved else width) + (d - 2 * n) // width + d // width)
    table, ks, vs = (lengths if x is None else x for x in (block_table, k_scale, v_scale))
    types = ", ".join(CTYPE[x.dtype] for x in (k, k_cache, cos, lengths))
    instance = f"concat_kv<{types}, {_said(interleaved)}, {_said(paged)}{f', {each}' if each else ''}>"
    launch(source, instance, cdiv(b * t * lanes, BLOCK), BLOCK, k_cache, v_cache, k, v, lengths, cos, sin, table, ks, vs, b * t, t,
           min(table.shape[1] * page, LONGEST) if paged else page, g, d, n, cos.shape[0] if turned else 0, len(k_cache), page,
           k_scale is not None, v_scale is not None, *k.stride()[:3], *v.stride()[:3], *k_cache.stride()[:3], *v_cache.stride()[:3],
           lengths.stride(0), cos.stride(0), sin.stride(0), table.stride(0), table.stride(-1), ks.stride(0), vs.stride(0))  # fmt: skip


def _said(flag):
    return "true" if flag else "false"


def _naive(k_cache, v_cache, k, v, lengths, cos, sin, interleaved, block_table=None, k_scale=None, v_scale=None):
    _launch(V1, k_cache, v_cache, k, v, lengths, cos, sin, interleaved, block_table, k_scale, v_scale)


def _vector(k_cache, v_cache, k, v, lengths, cos, sin, interleaved, block_table=None, k_scale=None, v_scale=None, *, config):
    _launch(V2, k_cache, v_cache, k, v, lengths, cos, sin, interleaved, block_table, k_scale, v_scale, config["each"])


def _any(call):
    return off_gpu(call["k"]) or scattered(call, "k_cache", "v_cache")


def _even(call):
    table = ("cos", "sin") if call["cos"] is not None else ()
    return _any(call) or uneven_heads(call, ("k", "v", "k_cache", "v_cache"), table)


def pick(call):
    """4 heads a thread: 8 loads of 16 bytes in flight. With few tokens a head a thread, so that more threads share them."""
    return EACH[2] if call["k"].numel() < 1 << 22 else EACH[0]


EACH = ({"each": 4}, {"each": 2}, {"each": 1}, {"each": 8})
FORWARD = FORWARD_E4M3 = (
    Kernel("cuda.v2_vector", _vector, "16 bytes an access, a table row for several heads", _even, EACH, pick, sources=(V2,)),
    Kernel("cuda.v1_naive", _naive, "a thread a pair", _any, sources=(V1,)),
)
