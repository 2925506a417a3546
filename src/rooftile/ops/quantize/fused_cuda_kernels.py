"""RMSNorm and SwiGLU to 8-bit floats in CUDA C++: a row's values computed again for each use, then kept in registers.

Bytes as in `fused_kernels`. Instructions an element in `v4_fused_rows`: norm 11, of them one float64 addition and one conversion to float64 for
every 4 elements; swiglu 14 with 2 of the special unit. In the time of 3 and 5 bytes at 4.2 TB/s an H200 issues 20 and 34 of a lane.
"""

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_rows import too_long, uneven, wider_than
from rooftile.ops._shared.launch import cdiv, power_of_2
from rooftile.ops.quantize.cuda_kernels import dealt, too_many
from rooftile.ops.quantize.fused_kernels import halves, no_mean, outputs
from rooftile.ops.quantize.triton_kernels import matrix

V3, V4 = (Source.beside(__file__, f"{name}.cu") for name in ("v3_fused_naive", "v4_fused_rows"))


def _said(flag):
    return "true" if flag else "false"


def _norm_arguments(x, residual, weight, to, block_n):
    """Results, then x, the stream beside it and the weight as they are launched on; where there is none, x stands in."""
    values, scale = outputs(x, x.shape[1], to, block_n)
    total = x.new_empty(x.shape if residual is not None else 0, dtype=x.dtype if residual is None else residual.dtype)
    x, m, n, stride = matrix(x)
    stream, _, _, stride_r = (x, m, n, 0) if residual is None else matrix(residual)
    dense = x if weight is None else weight if weight.is_contiguous() else weight.contiguous()
    flags = f"{_said(residual is not None)}, {_said(weight is not None)}"
    return (values, scale, total), x, stream, dense, m, n, stride, stride_r, flags


def _norm_naive(x, residual, weight, eps, to, block_n, power):
    (values, scale, total), x, stream, w, m, n, stride, stride_r, flags = _norm_arguments(x, residual, weight, to, block_n)
    instance = f"normed<{CTYPE[x.dtype]}, {CTYPE[stream.dtype]}, {CTYPE[w.dtype]}, {CTYPE[values.dtype]}, {flags}>"
    launch(
        V3,
        instance,
        m,
        256,
        values,
        scale,
        total,
        x,
        stream,
        w,
        n,
        block_n or n,
        cdiv(n, block_n or n),
        stride,
        stride_r,
        1 / n,
        eps,
        power,
    )
    return values, scale, total


def _norm_rows(x, residual, weight, eps, to, block_n, power, config):
    (values, scale, total), x, stream, w, m, n, stride, stride_r, flags = _norm_arguments(x, residual, weight, to, block_n)
    lanes, vecs, threads = norm_dealt(n * x.itemsize // 16, config)
    exact, full = x.itemsize == 2 and eps >= 1e-20, n * x.itemsize == 16 * lanes * vecs and m % (threads // lanes) == 0
    how = f"{flags}, {block_n}, {_said(exact)}, {_said(full)}, {lanes}, {vecs}, {threads}"
    instance = f"normed<{CTYPE[x.dtype]}, {CTYPE[w.dtype]}, {CTYPE[values.dtype]}, {how}>"
    launch(V4, instance, cdiv(m, threads // lanes), threads, values, scale, total, x, stream, w, m, n, stride, stride_r, 1 / n, eps, power)
    return values, scale, total


def norm_dealt(vectors, config):
    """A warp at least, whose lanes hold 128 columns of float32 with a vector each."""
    lanes = min(1024, max(32, power_of_2(cdiv(vectors, config["vecs"]))))
    return lanes, max(1, cdiv(vectors, lanes)), lanes if lanes > 32 else config["threads"]


def _gated_naive(gate, up, to, block_n, power):
    g, u = halves(gate, up)
    values, scale = outputs(g, g.shape[1], to, block_n)
    g, m, n, stride_g = matrix(g)
    u, _, _, stride_u = matrix(u)
    across = cdiv(n, block_n) if block_n else 1
    instance = f"gated<{CTYPE[g.dtype]}, {CTYPE[values.dtype]}>"
    launch(V3, instance, m * min(1, across), 256, values, scale, g, u, n, block_n or n, across, stride_g, stride_u, power)
    return values, scale


def _gated_rows(gate, up, to, block_n, power, *, config):
    g, u = halves(gate, up)
    values, scale = outputs(g, g.shape[1], to, block_n)
    g, m, n, stride_g = matrix(g)
    u, _, _, stride_u = matrix(u)
    deal = dealt(n * g.itemsize // 16, 1, block_n * g.itemsize // 16, config)
    lanes, _, threads = deal
    across = cdiv(n, block_n) if block_n else 1
    instance = f"gated<{CTYPE[g.dtype]}, {CTYPE[values.dtype]}, {block_n}, {', '.join(map(str, deal))}>"
    launch(V4, instance, cdiv(m * across, threads // lanes), threads, values, scale, g, u, m, n, stride_g, stride_u, across, power)
    return values, scale


def _two(run):
    """Of a launcher with a residual that may be None the one without."""
    return lambda x, *rest, **config: run(x, None, *rest, **config)[:2]


def _tuned(run):
    return lambda *args, config: run(*args, config)


def _any_norm(call):
    return off_gpu(call["x"]) or too_long(call["x"]) or no_mean(call["x"].shape[1])


def _even_norm(call):
    x, stream = call["x"], call.get("residual")
    if stream is not None and stream.dtype != x.dtype:
        return f"the stream has elements of {stream.itemsize} bytes and x of {x.itemsize}, and it reads both by the same vectors"
    return _any_norm(call) or uneven({n: call[n] for n in ("x", "residual", "weight") if n in call}) or wider_than(x, 4)


def _any_gated(call):
    return off_gpu(call["gate"]) or too_long(call["gate"])


def _even_gated(call):
    g, u = halves(call["gate"], call["up"])
    why = _any_gated(call) or uneven({"gate": g, "up": u})
    return why or (too_many(g, 1) if call["block_n"] else wider_than(g, 4))


def pick_norm(call):
    """4 vectors a thread: 1024 threads with 64 bytes of each input in flight are 64 KB a multiprocessor or more, three times what latency asks
    for. With a residual 2 of each, so that the same threads have both."""
    vectors = call["x"].shape[1] * call["x"].itemsize // 16
    return {"vecs": 2 if "residual" in call and vectors <= 2048 else 4, "threads": 128}


def pick_gated(call):
    """2 vectors of each input a thread, as `glu`'s; a row that would want more than 512 threads has 4."""
    vectors = halves(call["gate"], call["up"])[0].shape[1] * call["gate"].itemsize // 16
    return {"vecs": 4 if not call["block_n"] and vectors > 1024 else 2, "threads": 256}


ROWS = tuple({"vecs": v, "threads": t} for v, t in ((4, 128), (2, 128), (1, 128), (4, 256), (2, 256)))
ELSEWHERE = Limits(
    spill_bytes_elsewhere=32
)  # without an instruction for them sm_80 makes 8-bit floats by hand, and wants some registers more
IN_REGISTERS, AGAIN = "a row in registers from its arrival to its bytes", "an element is computed again for each use"

NORM = (
    Kernel("cuda.v4_fused_rows", _two(_tuned(_norm_rows)), IN_REGISTERS, _even_norm, ROWS, pick_norm, sources=(V4,), limits=ELSEWHERE),
    Kernel("cuda.v3_fused_naive", _two(_norm_naive), AGAIN, _any_norm, sources=(V3,)),
)
ADD_NORM = (
    Kernel("cuda.v4_fused_rows", _tuned(_norm_rows), IN_REGISTERS, _even_norm, ROWS, pick_norm, sources=(V4,), limits=ELSEWHERE),
    Kernel("cuda.v3_fused_naive", _norm_naive, AGAIN, _any_norm, sources=(V3,)),
)
GATED = (
    Kernel("cuda.v4_fused_rows", _gated_rows, IN_REGISTERS, _even_gated, ROWS, pick_gated, sources=(V4,), limits=ELSEWHERE),
    Kernel("cuda.v3_fused_naive", _gated_naive, AGAIN, _any_gated, sources=(V3,)),
)
