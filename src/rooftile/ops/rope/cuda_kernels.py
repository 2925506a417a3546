"""Rotary position embedding in CUDA C++: a thread a pair; 16 bytes an access with a table row for several heads; tokens through shared memory."""

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv
from rooftile.ops._shared.rotary import dense, scattered, uneven_heads
from rooftile.ops.rope.reference import check_positions

BLOCK = 256
V1, V2, V3, V4 = (Source.beside(__file__, f"{name}.cu") for name in ("v1_naive", "v2_vector", "v3_tokens", "v4_bulk"))
SHARED = 227 * 1024 - 128  # bytes for tokens, beside the barrier


def _lanes(x, n, interleaved):
    """Vectors of a head, two that turn together counted as one."""
    return _turning(x, n, interleaved) + (x.shape[-1] - 2 * n) // (16 // x.itemsize)


def _turning(x, n, interleaved):
    """The same without those that are copied."""
    width = 16 // x.itemsize
    return n // (width // 2 if interleaved else width)


def _room(q, k, tokens):
    return tokens * (q.shape[2] + k.shape[2]) * q.shape[3] * q.itemsize


def _block(lanes, groups, least):
    """A block's three sizes: so many tokens that there are `least` threads, and up to 8 more that they are whole warps; of its last size a block has 64."""
    one = lanes * groups
    tokens = min(64, max(1, cdiv(least, one)))
    return lanes, groups, next((t for t in range(tokens, min(64, tokens + 8) + 1) if one * t % 32 == 0 and one * t <= 1024), tokens)


def _launch(source, q, k, q_out, k_out, cos, sin, positions, interleaved, config, sign=1.0):
    check_positions(positions, cos)
    b, t, h, d = q.shape
    g, (s, n) = k.shape[2], cos.shape
    given = positions is not None
    cos, sin = dense(cos), dense(sin)
    if cos.dtype != sin.dtype:
        cos, sin = cos.float(), sin.float()
    flags, block, shared = f"{'true' if given else 'false'}, {'true' if interleaved else 'false'}", BLOCK, 0
    if source is V1:
        blocks, more = cdiv(b * t * (h + g) * (d - n), BLOCK), ""
    elif source is V2:
        each = config["each"]
        blocks, more = cdiv(b * t * (cdiv(h, each) + cdiv(g, each)) * _lanes(q, n, interleaved), BLOCK), f", {each}"
    elif source is V4:
        lanes, each = _turning(q, n, interleaved), config["each"]
        block, shared = (lanes, max(1, min(h + g, config["threads"] // (lanes * each))), each), _room(q, k, each)
        blocks, more = cdiv(b * t, each), ""
    else:
        lanes = _lanes(q, n, interleaved)
        each = next(e for e in (1, 2, 4, 8) if e >= config["each"] and lanes * cdiv(h + g, e) <= 1024)  # of 8 `_rows` has seen to it
        block = _block(lanes, cdiv(h + g, each), config["threads"])
        blocks, more = cdiv(b * t, block[2]), f", {each}"
    strides = (x for y in (q, k, q_out, k_out) for x in y.stride()[: 2 if source is V4 else 3])  # V4: heads lie one behind the other
    launch(source, f"rope<{CTYPE[q.dtype]}, {CTYPE[cos.dtype]}, {flags}{more}>", blocks, block, q_out, k_out, q, k, cos, sin,
           positions if given else q, b * t, t, s, h, g, d, n, *strides, cos.stride(0), sin.stride(0),
           *(positions.stride() if given else (0, 0)), sign, shared=shared)  # fmt: skip


def _made(source, sign=1.0):
    def rope(q, k, cos, sin, positions, interleaved, *, config=None):
        q_out, k_out = q.new_empty(q.shape), k.new_empty(k.shape)
        _launch(source, dense(q), dense(k), q_out, k_out, cos, sin, positions, interleaved, config, sign)
        return q_out, k_out

    return rope


def _overwritten(source):
    def rope(q, k, cos, sin, positions, interleaved, *, config):
        _launch(source, q, k, q, k, cos, sin, positions, interleaved, config)

    return rope


def _any(call):
    return off_gpu(call["q"] if "q" in call else call["dq_out"])


def _even(call):
    return _any(call) or uneven_heads(call, ("q", "k") if "q" in call else ("dq_out", "dk_out"), ("cos", "sin"))


def _rows(call):
    """Tokens are counted in 31 bits, and one's heads are in a block."""
    q, k = (call["q"], call["k"]) if "q" in call else (call["dq_out"], call["dk_out"])
    b, t, h, _ = q.shape
    if why := _even(call):
        return why
    if b * t >= 2**31:
        return f"there are {b * t} tokens, and it counts up to {2**31 - 1}"
    threads = _lanes(q, call["cos"].shape[1], call["interleaved"]) * cdiv(h + k.shape[2], 8)
    return f"8 heads a thread are {threads} threads a token, and a block has 1024" if threads > 1024 else None


def _whole(call):
    """Why a token's heads are no row for the copy engine, or None."""
    if why := _rows(call):
        return why
    q, k = (call["q"], call["k"]) if "q" in call else (call["dq_out"], call["dk_out"])
    for name, x in (("queries", q), ("keys", k)):
        if x.shape[2] > 1 and x.stride(3) == 1 and x.stride(2) != x.shape[3]:
            return f"heads of the {name} lie {x.stride(2)} elements apart, and it moves those of a token as one row of {x.shape[3]} each"
    lanes = _turning(q, call["cos"].shape[1], call["interleaved"])
    if not 0 < lanes * MOST <= 1024:
        return f"{lanes} lanes would turn a head, and it takes 1 to {1024 // MOST}"
    room = _room(q, k, MOST)
    return f"{MOST} tokens are {room} bytes, and a block has {SHARED}" if room > SHARED else None


def _few(call):
    x = call["q"] if "q" in call else call["dq_out"]
    return f"queries are {x.numel()} numbers, and to pass through shared memory pays from {FEW}" if x.numel() < FEW else None


def pick_tokens(call):
    """4 heads a thread: 8 loads of 16 bytes in flight. With few tokens a head a thread."""
    x = call["q"] if "q" in call else call["dq_out"]
    return TOKENS[2] if x.numel() < FEW else TOKENS[0]


def pick(call):
    """4 heads a thread: 8 loads of 16 bytes in flight. With few tokens a head a thread, so that more threads share them."""
    x = call["q"] if "q" in call else call["dq_out"]
    return EACH[2] if x.numel() < FEW else EACH[0]


TOKENS = tuple({"each": e, "threads": t} for e, t in ((4, 64), (4, 128), (1, 128), (8, 128), (2, 128), (1, 64), (2, 64)))
# two tokens of 32 heads of 80 in 16 bits are 10 KB, and a multiprocessor has room for twenty such
BULK = tuple({"each": e, "threads": t} for e, t in ((2, 256), (1, 128), (2, 128), (1, 256), (4, 256), (4, 128)))
MOST = max(c["each"] for c in BULK)
EACH = ({"each": 4}, {"each": 2}, {"each": 1}, {"each": 8})

FEW = 1 << 22  # numbers
IDEA = "16 bytes an access, a table row for several heads"
AT_ONCE = "a token's heads a block, asked for before its place is known"


def _bulk(run, refuse):
    idea, limits = "whole tokens through shared memory, by the copy engine", Limits(shared_bytes=227 * 1024)
    return Kernel("cuda.v4_bulk", run, idea, refuse, BULK, limits=limits, architectures=(90,), sources=(V4,), declines=_few)


def _in_place(refuse):
    return lambda call: refuse(call) or scattered(call, "q", "k")


FORWARD = (
    _bulk(_made(V4), _whole),
    Kernel("cuda.v3_tokens", _made(V3), AT_ONCE, _rows, TOKENS, pick_tokens, sources=(V3,)),
    Kernel("cuda.v2_vector", _made(V2), IDEA, _even, EACH, pick, sources=(V2,)),
    Kernel("cuda.v1_naive", _made(V1), "a thread a pair", _any, sources=(V1,)),
)
BACKWARD = (
    _bulk(_made(V4, -1.0), _whole),
    Kernel("cuda.v3_tokens", _made(V3, -1.0), AT_ONCE, _rows, TOKENS, pick_tokens, sources=(V3,)),
    Kernel("cuda.v2_vector", _made(V2, -1.0), IDEA, _even, EACH, pick, sources=(V2,)),
)
OVERWRITE = (
    _bulk(_overwritten(V4), _in_place(_whole)),
    Kernel("cuda.v3_tokens", _overwritten(V3), AT_ONCE, _in_place(_rows), TOKENS, pick_tokens, sources=(V3,)),
    Kernel("cuda.v2_vector", _overwritten(V2), IDEA, _in_place(_even), EACH, pick, sources=(V2,)),
)
