"""Dropout, residual and norm in CUDA C++: a block a row with sums halved in shared memory, then rows in registers, 16 bytes an access."""

import torch

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_rows import ADD_ROWS, add_halves, deal, long_sums, threads, too_long, uneven, wider_than
from rooftile.ops._shared.launch import cdiv, rows
from rooftile.ops._shared.philox import scale, threshold
from rooftile.ops.dropout_add_norm.triton_kernels import gradients, outputs

V1, V2 = (Source.beside(__file__, f"{name}.cu") for name in ("v1_naive", "v2_rows"))


def _said(yes):
    return "true" if yes else "false"


def _parameters(x, weight, bias):
    """Contiguous parameters, and x to point to where there is none."""
    return [x if p is None else p if p.is_contiguous() else p.contiguous() for p in (weight, bias)]


def _forward(source, x, residual, weight, bias, seed, p, eps, norm, dealt):
    """`dealt` is what an instance has beside its types and flags, and the block; of the first rung nothing and 256."""
    made = outputs(x, residual)
    x, m, n, stride_x = rows(x)
    residual, _, _, stride_r = rows(residual)
    w, b = _parameters(x, weight, bias)
    more, block = dealt(n)
    types = [CTYPE[t.dtype] for t in ((x, w, b) if more else (x, residual, w, b))]
    flags = [_said(f) for f in (norm == "layer", weight is not None, bias is not None)]
    launch(source, f"forward<{', '.join([*types, *flags, *more])}>", m, block, *made, x, residual, w, b, seed, n, stride_x, stride_r,
           threshold(p), scale(p), eps)  # fmt: skip
    return made


def naive(x, residual, weight, bias, seed, p, eps, norm):
    return _forward(V1, x, residual, weight, bias, seed, p, eps, norm, lambda n: ([], 256))


def register_row(x, residual, weight, bias, seed, p, eps, norm, *, config):
    def dealt(n):
        vectors = n * x.itemsize // 16
        block = threads(vectors, config["vecs"])
        return [str(cdiv(vectors, block)), str(block)], block

    return _forward(V2, x, residual, weight, bias, seed, p, eps, norm, dealt)


def naive_backward(dout, dsum, sum, weight, bias, mean, rstd, seed, p, norm):
    made = gradients(dout, sum, weight, bias)
    dx, dr, dweight, dbias = made
    dout, m, n, stride_dout = rows(dout)
    dsum, _, _, stride_dsum = rows(dsum)
    sum, _, _, stride_s = rows(sum)
    mean, rstd = mean.contiguous(), rstd.contiguous()
    w, b = _parameters(dout, weight, bias)
    t, r, wt, bt = (CTYPE[x.dtype] for x in (dout, sum, w, b))
    flags = _said(weight is not None), _said(bias is not None)
    launch(V1, f"backward<{t}, {r}, {wt}, {_said(norm == 'layer')}, {flags[0]}>", m, 256, dx, dr, dout, dsum, sum, w, mean, rstd, seed, n,
           stride_dout, stride_dsum, stride_s, threshold(p), scale(p))  # fmt: skip
    if weight is not None or bias is not None:
        to_w, to_b = dx if weight is None else dweight, dx if bias is None else dbias
        launch(V1, f"columns<{t}, {r}, {wt}, {bt}, {', '.join(flags)}>", cdiv(n, 256), 256, to_w, to_b, dout, sum, mean, rstd, m, n,
               stride_dout, stride_s)  # fmt: skip
    return made


def pipeline_backward(dout, dsum, sum, weight, bias, mean, rstd, seed, p, norm, *, config):
    made = gradients(dout, sum, weight, bias)
    dx, dr, dweight, dbias = made
    dout, m, n, stride_dout = rows(dout)
    dsum, _, _, stride_dsum = rows(dsum)
    sum, _, _, stride_s = rows(sum)
    mean, rstd = mean.contiguous(), rstd.contiguous()
    w, _ = _parameters(dout, weight, bias)
    d = deal(dout, config, tensors=3, most=4, widest=512)  # 1024 threads of 64 registers would spill
    blocks = d.blocks(dout, m)
    partial = dout.new_empty((0 if weight is None and bias is None else 2 * blocks, n), dtype=torch.float32)
    flags = ", ".join(_said(f) for f in (norm == "layer", weight is not None, bias is not None))
    launch(V2, f"backward<{CTYPE[dout.dtype]}, {CTYPE[w.dtype]}, {flags}, {d.instance}>", blocks, d.threads, dx, dr, partial, dout, dsum, sum, w,
           mean, rstd, seed, m, n, stride_dout, stride_dsum, stride_s, threshold(p), scale(p), shared=d.shared(3))  # fmt: skip
    add_halves(partial, dweight, dbias)
    return made


def _row(call):
    return call["x"] if "x" in call else call["dout"]


def _any(call):
    return off_gpu(_row(call)) or too_long(_row(call)) or (None if _row(call).shape[-1] else "N=0: a row without columns has no mean")


def _serial(call):
    return _any(call) or long_sums(_row(call), 4096)


def _serial_backward(call):
    one = "N=1: one column has no gradient, and a fused multiply-add would leave its rounding times rstd"
    return _serial(call) or (one if _row(call).shape[-1] == 1 else None)


def _upto(most):
    def refuse(call):
        x, stream = _row(call), call["residual"] if "residual" in call else call["sum"]
        if stream.dtype != x.dtype:
            return f"the stream has elements of {stream.itemsize} bytes and x of {x.itemsize}, and it reads both by the same vectors"
        return _any(call) or uneven({n: t for n, t in call.items() if n not in ("mean", "rstd", "seed")}) or wider_than(x, most)

    return refuse


def pick_backward(call):
    """As layernorm's: 32 sums of 16 columns are 96 registers and more, so 512 threads a multiprocessor, and of three tensors two rows wait or
    arrive: 96 KB at N = 2048 and more."""
    size = call["dout"].shape[-1] * call["dout"].itemsize
    if size <= 2048:
        return {"vecs": 2 if size <= 1024 else 4, "threads": 256, "stages": 2, "per": 2}
    return {"vecs": 2, "threads": 256, "stages": 2, "per": max(1, 512 // max(64, size // 32))}


# 2 vectors of each tensor a thread: 1024 threads of 64 registers a multiprocessor have 64 KB in flight, three times what latency asks for
REGISTERS = ({"vecs": 2}, {"vecs": 4}, {"vecs": 1})
WALKS = tuple(
    {"vecs": v, "threads": 256, "stages": s, "per": p}
    for v, s, p in ((2, 2, 1), (2, 2, 2), (2, 1, 2), (1, 2, 1), (1, 2, 2), (1, 3, 1), (4, 2, 1), (4, 1, 2))
)
ELSEWHERE = Limits(spill_bytes_elsewhere=256)  # the bounds on threads are set for sm_90; other compilers want a few registers more

FORWARD = (
    Kernel("cuda.v2_rows", register_row, "the row in registers, 16 bytes an access", _upto(2), REGISTERS, sources=(V2,), limits=ELSEWHERE),
    Kernel("cuda.v1_naive", naive, "a block a row, sums halved in shared memory", _serial, sources=(V1,)),
)
BACKWARD = (
    Kernel("cuda.v2_rows", pipeline_backward, "row after row, the parameters' gradients in registers", _upto(2), WALKS, pick_backward,
           sources=(V2, ADD_ROWS), limits=ELSEWHERE),
    Kernel("cuda.v1_naive", naive_backward, "a block a row, then a thread a column", _serial_backward, sources=(V1,)),
)  # fmt: skip
