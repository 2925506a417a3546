"""The residual's addition in CUDA C++: a thread an element, then 16 bytes an access with several in flight; out of place and in place."""

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK
from rooftile.ops._shared.launch import cdiv
from rooftile.ops._shared.pointwise import no_rows, ragged, together

V1, V2 = (Source.beside(__file__, f"{name}.cu") for name in ("v1_naive", "v2_vector"))


def _sum(x, residual, out, config):
    """Where there is no `out` the sum takes the residual's place. Without a config, the first rung."""
    m, n, (x, residual), (stride_x, stride_residual) = together(x, residual)
    out, stride_out = (residual, stride_residual) if out is None else (out, n)
    types = f"{CTYPE[x.dtype]}, {CTYPE[residual.dtype]}"
    if config:
        vecs, threads = config["vecs"], config["threads"]
        source, instance, size = V2, f"add<{types}, {vecs}, {threads}>", vecs * threads * 16 // x.itemsize
    else:
        source, instance, threads, size = V1, f"add<{types}>", BLOCK, BLOCK
    tiles = cdiv(n, size)
    launch(source, instance, m * tiles, threads, out, x, residual, n, tiles, stride_x, stride_residual, stride_out)


def residual_add(x, residual, *, config=None):
    out = residual.new_empty(residual.shape)
    _sum(x, residual, out, config)
    return out


def overwrite(x, residual, *, config=None):
    _sum(x, residual, None, config)


def _any(call):
    return off_gpu(call["x"])


def _place(call):
    return off_gpu(call["x"]) or no_rows("residual", call["residual"])


def _even(refuse):
    return lambda call: refuse(call) or ragged({n: call[n] for n in ("x", "residual")})


def pick(call):
    """4 loads of 16 bytes a thread: 128 KB in flight a multiprocessor. Where there are few elements, a vector a thread."""
    return VECTORS[0] if call["residual"].numel() * call["residual"].itemsize >= 2**24 else {"vecs": 1, "threads": 128}


VECTORS = tuple({"vecs": v, "threads": t} for v, t in ((2, 256), (1, 256), (4, 128), (2, 128), (1, 128), (1, 512), (2, 512), (4, 256)))


def _rungs(run, refuse):
    return (
        Kernel("cuda.v2_vector", run, "16 bytes an access, several in flight", _even(refuse), VECTORS, pick, sources=(V2,)),
        Kernel("cuda.v1_naive", run, "a thread an element", refuse, sources=(V1,)),
    )


FORWARD, OVERWRITE = _rungs(residual_add, _any), _rungs(overwrite, _place)
