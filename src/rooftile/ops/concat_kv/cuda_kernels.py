"""New keys and values into a cache, in CUDA C++: a thread a pair; 16 bytes an access with a table row for several heads; a token's heads a block."""

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv
from rooftile.ops._shared.rotary import dense, scattered, uneven_heads
from rooftile.ops.concat_kv.reference import check_room

BLOCK = 256
LONGEST = 2**31 - 1  # keys of a sequence, by its pages: places are counted in an int
FEW = 1 << 20  # numbers of the keys
V1, V2, V3 = (Source.beside(__file__, f"{name}.cu") for name in ("v1_naive", "v2_vector", "v3_tokens"))


def _lanes(k, n, interleaved):
    """Vectors of a head, two that turn together counted as one."""
    width = 16 // k.itemsize
    return n // (width // 2 if interleaved else width) + (k.shape[3] - 2 * n) // width


def _launch(source, k_cache, v_cache, k, v, lengths, cos, sin, interleaved, block_table, k_scale, v_scale, config=None):
    check_room(lengths, k_cache, k.shape[1], cos, block_table)
    k, v, turned, paged = dense(k), dense(v), cos is not None, block_table is not None
    b, t, g, d = k.shape
    cos, sin = (dense(cos), dense(sin)) if turned else (k, k)
    if cos.dtype != sin.dtype:
        cos, sin = cos.float(), sin.float()
    n, page, each, block = cos.shape[1] if turned else 0, k_cache.shape[1], 0, BLOCK
    if source is V1:
        blocks = cdiv(b * t * g * (2 * d - n), BLOCK)
    elif source is V2:
        each = config["each"]
        blocks = cdiv(b * t * cdiv(g, each) * (_lanes(k, n, interleaved) + d // (16 // k.itemsize)), BLOCK)
    else:
        lanes = _lanes(k, n, interleaved)
        each = next(e for e in HEADS if e >= config["each"] and lanes * cdiv(g, e) <= MOST)  # of the last `_rows` has seen to it
        block = (lanes, cdiv(g, each), min(64, max(1, config["threads"] // max(1, lanes * cdiv(g, each)))))
        blocks = cdiv(b * t, block[2]) if k.numel() else 0
    table, ks, vs = (lengths if x is None else x for x in (block_table, k_scale, v_scale))
    types = ", ".join(CTYPE[x.dtype] for x in (k, k_cache, cos, lengths))
    instance = f"concat_kv<{types}, {_said(interleaved)}, {_said(paged)}{f', {each}' if each else ''}>"
    launch(source, instance, blocks, block, k_cache, v_cache, k, v, lengths, cos, sin, table, ks, vs, b * t, t,
           min(table.shape[1] * page, LONGEST) if paged else page, g, d, n, cos.shape[0] if turned else 0, len(k_cache), page,
           k_scale is not None, v_scale is not None, *k.stride()[:3], *v.stride()[:3], *k_cache.stride()[:3], *v_cache.stride()[:3],
           lengths.stride(0), cos.stride(0), sin.stride(0), table.stride(0), table.stride(-1), ks.stride(0), vs.stride(0))  # fmt: skip


def _said(flag):
    return "true" if flag else "false"


def _naive(k_cache, v_cache, k, v, lengths, cos, sin, interleaved, block_table=None, k_scale=None, v_scale=None):
    _launch(V1, k_cache, v_cache, k, v, lengths, cos, sin, interleaved, block_table, k_scale, v_scale)


def _vector(k_cache, v_cache, k, v, lengths, cos, sin, interleaved, block_table=None, k_scale=None, v_scale=None, *, config):
    _launch(V2, k_cache, v_cache, k, v, lengths, cos, sin, interleaved, block_table, k_scale, v_scale, config)


def _tokens(k_cache, v_cache, k, v, lengths, cos, sin, interleaved, block_table=None, k_scale=None, v_scale=None, *, config):
    _launch(V3, k_cache, v_cache, k, v, lengths, cos, sin, interleaved, block_table, k_scale, v_scale, config)


def _any(call):
    return off_gpu(call["k"]) or scattered(call, "k_cache", "v_cache")


def _even(call):
    table = ("cos", "sin") if call["cos"] is not None else ()
    return _any(call) or uneven_heads(call, ("k", "v", "k_cache", "v_cache"), table)


def _pairs(call):
    return call["cos"].shape[1] if call["cos"] is not None else 0


def _rows(call):
    """Tokens are counted in 31 bits, and one's heads are in a block."""
    if why := _even(call):
        return why
    b, t, g, _ = call["k"].shape
    if b * t >= 2**31:
        return f"there are {b * t} tokens, and it counts up to {2**31 - 1}"
    threads = _lanes(call["k"], _pairs(call), call["interleaved"]) * cdiv(g, HEADS[-1])
    return f"{HEADS[-1]} heads a thread are {threads} threads a token, and a block has {MOST}" if threads > MOST else None


def _few(call):
    size = call["k"].numel()
    return f"keys are {size} numbers, and a block's row to a token pays from {FEW}" if size < FEW else None


def pick_tokens(call):
    """4 loads of 16 bytes in flight: a head's two halves of a key and of a value, or a vector of each of two heads."""
    return TOKENS[0] if 4 * _pairs(call) >= call["k"].shape[3] and not call["interleaved"] else TOKENS[1]


def pick(call):
    """4 heads a thread: 8 loads of 16 bytes in flight. With few tokens a head a thread, so that more threads share them."""
    return EACH[2] if call["k"].numel() < 1 << 22 else EACH[0]


EACH = ({"each": 4}, {"each": 2}, {"each": 1}, {"each": 8})
TOKENS = tuple({"each": e, "threads": t} for e, t in ((1, 128), (2, 128), (1, 256), (2, 256), (4, 128)))
HEADS, MOST = (1, 2, 4), 512  # of a thread, whose registers leave room for so many of them
AT_ONCE = "a token's heads a block, asked for before its place is known"
FORWARD = FORWARD_E4M3 = (
    Kernel("cuda.v3_tokens", _tokens, AT_ONCE, _rows, TOKENS, pick_tokens, sources=(V3,), declines=_few),
    Kernel("cuda.v2_vector", _vector, "16 bytes an access, a table row for several heads", _even, EACH, pick, sources=(V2,)),
    Kernel("cuda.v1_naive", _naive, "a thread a pair", _any, sources=(V1,)),
)
