"""Bias, mask, scale and residual in CUDA C++: a thread an element, then 16 bytes an access with several rows in flight, then gradients whose rows arrive
while others are worked on."""

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK
from rooftile.ops._shared.cuda_norms import ELSEWHERE
from rooftile.ops._shared.cuda_partials import ADD_ROWS, add_rows
from rooftile.ops._shared.cuda_rows import too_long, uneven
from rooftile.ops._shared.cuda_shares import evenly
from rooftile.ops._shared.launch import cdiv, resident, rows

FEW_ROWS = 256  # 4 turns of a block, and no second launch
MOST_DOWN = 64  # rows of a block at a time, whose sums one thread a column adds
V1, V2, V3 = (Source.beside(__file__, f"{name}.cu") for name in ("v1_naive", "v2_vector", "v3_pipeline"))


def naive(x, bias, mask, scale, residual):
    out, bias = x.new_empty(x.shape), bias.contiguous()
    x, m, n, stride_x = rows(x)
    mask, _, _, stride_mask = rows(mask.view(torch.uint8))
    residual, _, _, stride_residual = rows(residual)
    tiles = cdiv(n, BLOCK)
    launch(V1, f"forward<{CTYPE[x.dtype]}, {CTYPE[bias.dtype]}>", m * tiles, BLOCK, out, x, bias, mask, residual, n, tiles, scale,
           stride_x, stride_mask, stride_residual)  # fmt: skip
    return out


def naive_backward(dout, bias, mask, scale):
    dx, dbias = dout.new_empty(dout.shape), bias.new_empty(bias.shape)
    dout, m, n, stride_dout = rows(dout)
    mask, _, _, stride_mask = rows(mask.view(torch.uint8))
    t, b, tiles = CTYPE[dout.dtype], CTYPE[bias.dtype], cdiv(n, BLOCK)
    launch(V1, f"backward<{t}>", m * tiles, BLOCK, dx, dout, mask, n, tiles, scale, stride_dout, stride_mask)
    launch(V1, f"columns<{t}, {b}>", tiles, BLOCK, dbias, dout, mask, m, n, scale, stride_dout, stride_mask)
    return dx, dbias


def _strips(n, itemsize, threads):
    """Blocks side by side over a row of n elements, and the threads of each: no more warps than the row has work for."""
    vectors = cdiv(n * itemsize, 16)
    block = min(threads, 32 * max(1, cdiv(vectors, 32)))
    return cdiv(vectors, block), block


def vector(x, bias, mask, scale, residual, *, config):
    out, bias = x.new_empty(x.shape), bias.contiguous()
    x, m, n, stride_x = rows(x)
    mask, _, _, stride_mask = rows(mask.view(torch.uint8))
    residual, _, _, stride_residual = rows(residual)
    strips, block = _strips(n, x.itemsize, config["threads"])
    instance = f"forward<{CTYPE[x.dtype]}, {CTYPE[bias.dtype]}, {config['rows']}>"
    launch(V2, instance, cdiv(m, config["rows"]) * strips, block, out, x, bias, mask, residual, m, n, strips, scale,
           stride_x, stride_mask, stride_residual)  # fmt: skip
    return out


def vector_backward(dout, bias, mask, scale, *, config):
    dx, dbias = dout.new_empty(dout.shape), bias.new_empty(bias.shape)
    dout, m, n, stride_dout = rows(dout)
    mask, _, _, stride_mask = rows(mask.view(torch.uint8))
    if m <= FEW_ROWS:
        launch(V2, f"few<{CTYPE[dout.dtype]}, {CTYPE[bias.dtype]}>", cdiv(n * dout.itemsize, 128), (8, 64), dx, dbias, dout, mask, m, n, scale,
               stride_dout, stride_mask)  # fmt: skip
        return dx, dbias
    strips, block = _strips(n, dout.itemsize, config["threads"])
    most = (
        2 if dout.device.type == "cpu" else resident(dout, max(1, config["per"] // block)) // max(1, strips)
    )  # simulated: 2 blocks that loop
    blocks = max(1, min(cdiv(m, config["rows"]), most))
    partial = dout.new_empty((blocks, n), dtype=torch.float32)
    launch(V2, f"backward<{CTYPE[dout.dtype]}, {config['rows']}>", blocks * strips, block, dx, partial, dout, mask, m, n, strips, scale,
           stride_dout, stride_mask)  # fmt: skip
    add_rows(partial, dbias)
    return dx, dbias


def pipeline_backward(dout, bias, mask, scale, *, config):
    dx, dbias = dout.new_empty(dout.shape), bias.new_empty(bias.shape)
    dout, m, n, stride_dout = rows(dout)
    mask, _, _, stride_mask = rows(mask.view(torch.uint8))
    vectors, stages = cdiv(n * dout.itemsize, 16), config["stages"]
    strips = cdiv(vectors, config["lanes"])
    lanes = max(1, cdiv(vectors, max(1, strips)))
    down = min(MOST_DOWN, config["threads"] // lanes)
    per = config["threads"] // (lanes * down)
    blocks = max(1, evenly(cdiv(m, down), max(1, resident(dout, per) // max(1, strips))))  # simulated: 2 blocks that loop
    partial = dout.new_empty((blocks, n), dtype=torch.float32)
    launch(V3, f"backward<{CTYPE[dout.dtype]}, {stages}>", (strips, blocks), (lanes, down), dx, partial, dout, mask, *divmod(m, down), n, scale,
           stride_dout, stride_mask, shared=stages * lanes * down * (16 + 16 // dout.itemsize))  # fmt: skip
    add_rows(partial, dbias)
    return dx, dbias


def _first(call):
    return call["x"] if "x" in call else call["dout"]


def _any(call):
    return off_gpu(_first(call)) or too_long(_first(call))


def _even(call):
    return _any(call) or uneven({n: t for n, t in call.items() if n != "mask"}) or _off_mask(call["mask"], 16 // _first(call).itemsize)


def _off_mask(mask, to):
    """As many bytes of the mask are read at a time as there are elements in 16 bytes of x."""
    if mask.stride(-1) != 1 and not mask.is_contiguous():
        return None  # it will be copied, and copies begin well
    past = 0 if isinstance(mask, FakeTensor) else mask.data_ptr() % to
    apart = [mask.stride(i) for i in range(mask.dim() - 1) if mask.shape[i] > 1 and mask.stride(i) % to]
    if past:
        return f"mask begins {past} bytes past a multiple of {to}, and it reads {to} bytes at a time"
    return f"rows of mask are {apart[0]} bytes apart, no multiple of the {to} it reads at a time" if apart else None


def _few(call):
    """Why one launch does sooner than one and another for the sums, or None."""
    n = call["dout"].shape[-1]
    m = call["dout"].numel() // n if n else 0
    return f"{m} rows are added up in one launch, and this rung takes two" if m <= FEW_ROWS else None


def pick(call):
    """2 rows of 40 bytes a thread: 160 KB in flight a multiprocessor of 2048 threads, 100 of 1280. Few elements: one row."""
    return _ROWS[0] if call["x"].numel() * call["x"].itemsize >= 2**24 else {"rows": 1, "threads": 128}


_ROWS = tuple({"rows": r, "threads": t} for r, t in ((2, 256), (1, 256), (4, 256), (4, 128), (2, 128), (2, 512), (8, 128)))
# 4 rows of 24 bytes a thread, 1024 threads a multiprocessor: 98 KB in flight, and 73 partial rows of 14336 columns
_WALKS = tuple(
    {"rows": r, "threads": t, "per": p}
    for r, t, p in ((4, 256, 1024), (4, 256, 2048), (8, 256, 1024), (2, 256, 2048), (8, 128, 1024), (4, 128, 1536), (8, 512, 1024), (2, 128, 2048))
)  # fmt: skip
# One block of 768 threads a multiprocessor has 8 rows of 24 bytes a thread on their way, 147 KB, and 128 vectors of a strip are 6 rows at a time
_TURNS = tuple(
    {"lanes": l, "threads": t, "stages": s}
    for l, t, s in ((128, 768, 8), (128, 768, 6), (256, 768, 8), (128, 768, 4), (128, 384, 8), (64, 768, 8))
)

FORWARD = (
    Kernel("cuda.v2_vector", vector, "16 bytes an access, rows in flight, one bias for them", _even, _ROWS, pick, sources=(V2,)),
    Kernel("cuda.v1_naive", naive, "a thread an element", _any, sources=(V1,)),
)
BACKWARD = (
    Kernel("cuda.v3_pipeline", pipeline_backward, "rows that arrive while others are worked on, a row of sums a block", _even, _TURNS, sources=(V3, ADD_ROWS),
           limits=ELSEWHERE, declines=_few),
    Kernel("cuda.v2_vector", vector_backward, "dout read once, the bias's gradient in registers", _even, _WALKS, sources=(V2, ADD_ROWS)),
    Kernel("cuda.v1_naive", naive_backward, "a thread an element, then a thread a column", _any, sources=(V1,)),
)  # fmt: skip
