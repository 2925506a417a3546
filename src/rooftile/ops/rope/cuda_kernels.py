"""Rotary position embedding in CUDA C++: a thread a pair, and 16 bytes an access with a table row for several heads."""

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv
from rooftile.ops._shared.rotary import dense, scattered, uneven_heads
from rooftile.ops.rope.reference import check_positions

BLOCK = 256
V1, V2 = (Source.beside(__file__, f"{name}.cu") for name in ("v1_naive", "v2_vector"))


def _launch(source, q, k, q_out, k_out, cos, sin, positions, interleaved, config, sign=1.0):
    check_positions(positions, cos)
    b, t, h, d = q.shape
    g, (s, n) = k.shape[2], cos.shape
    given = positions is not None
    cos, sin = dense(cos), dense(sin)
    if cos.dtype != sin.dtype:
        cos, sin = cos.float(), sin.float()
    flags = f"{'true' if given else 'false'}, {'true' if interleaved else 'false'}"
    if source is V1:
        threads, more = b * t * (h + g) * (d - n), ""
    else:
        each, width = config["each"], 16 // q.itemsize
        pairs = width // 2 if interleaved else width
        threads, more = b * t * (cdiv(h, each) + cdiv(g, each)) * (n // pairs + (d - 2 * n) // width), f", {each}"
    launch(source, f"rope<{CTYPE[q.dtype]}, {CTYPE[cos.dtype]}, {flags}{more}>", cdiv(threads, BLOCK), BLOCK, q_out, k_out, q, k, cos, sin,
           positions if given else q, b * t, t, s, h, g, d, n, *q.stride()[:3], *k.stride()[:3], *q_out.stride()[:3], *k_out.stride()[:3],
           cos.stride(0), sin.stride(0), *(positions.stride() if given else (0, 0)), sign)  # fmt: skip


def _naive(q, k, cos, sin, positions, interleaved):
    q_out, k_out = q.new_empty(q.shape), k.new_empty(k.shape)
    _launch(V1, dense(q), dense(k), q_out, k_out, cos, sin, positions, interleaved, {})
    return q_out, k_out


def _vector(q, k, cos, sin, positions, interleaved, *, config):
    q_out, k_out = q.new_empty(q.shape), k.new_empty(k.shape)
    _launch(V2, dense(q), dense(k), q_out, k_out, cos, sin, positions, interleaved, config)
    return q_out, k_out


def _vector_backward(dq_out, dk_out, cos, sin, positions, interleaved, *, config):
    dq, dk = dq_out.new_empty(dq_out.shape), dk_out.new_empty(dk_out.shape)
    _launch(V2, dense(dq_out), dense(dk_out), dq, dk, cos, sin, positions, interleaved, config, -1.0)
    return dq, dk


def _overwrite(q, k, cos, sin, positions, interleaved, *, config):
    _launch(V2, q, k, q, k, cos, sin, positions, interleaved, config)


def _any(call):
    return off_gpu(call["q"] if "q" in call else call["dq_out"])


def _even(call):
    return _any(call) or uneven_heads(call, ("q", "k") if "q" in call else ("dq_out", "dk_out"), ("cos", "sin"))


def pick(call):
    """4 heads a thread: 8 loads of 16 bytes in flight. With few tokens a head a thread, so that more threads share them."""
    x = call["q"] if "q" in call else call["dq_out"]
    return EACH[2] if x.numel() < 1 << 22 else EACH[0]


EACH = ({"each": 4}, {"each": 2}, {"each": 1}, {"each": 8})

IDEA = "16 bytes an access, a table row for several heads"
FORWARD = (
    Kernel("cuda.v2_vector", _vector, IDEA, _even, EACH, pick, sources=(V2,)),
    Kernel("cuda.v1_naive", _naive, "a thread a pair", _any, sources=(V1,)),
)
BACKWARD = (Kernel("cuda.v2_vector", _vector_backward, IDEA, _even, EACH, pick, sources=(V2,)),)
OVERWRITE = (Kernel("cuda.v2_vector", _overwrite, IDEA, lambda call: _even(call) or scattered(call, "q", "k"), EACH, pick, sources=(V2,)),)
