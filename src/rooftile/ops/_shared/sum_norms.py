"""The norm of a residual stream to which a branch has just been added, in CUDA C++: what add_rmsnorm, add_layernorm and dropout_add_norm launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rooftile.core.kernel import Kernel
from rooftile.core.spec import Call
from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_norms import ELSEWHERE, Config, any_row, at, one_column, said, serial, statistics, types
from rooftile.ops._shared.cuda_partials import ADD_ROWS, add_rows
from rooftile.ops._shared.cuda_rows import Refuse, deal, uneven, wider_than
from rooftile.ops._shared.launch import cdiv, power_of_2, rows
from rooftile.ops._shared.norms import Norm, gradients, outputs

V1, V2 = (Source.beside(__file__, f"sum_norm_{name}.cu") for name in ("v1_naive", "v2_rows"))


def _branch(norm: Norm) -> str:
    return "Plain" if norm.seed is None else "Dropped"


def forward(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, norm: Norm, config: Config, save: bool
) -> tuple[Tensor | None, ...]:
    """out, sum, mean, rstd; without the mean where an RMSNorm has none to give."""
    out, total, mean, rstd = outputs(x, residual, norm, save)
    x, m, n, stride_x = rows(x)
    residual, _, _, stride_r = rows(residual)
    w, b = at(weight, x), at(bias, x)
    seed, least, factor = norm.drawn(x)
    instance = f"forward<{_branch(norm)}, {types(x, residual, w, b)}, {said(norm.layer, weight is not None, bias is not None)}"
    tensors = (out, total, *statistics(x, rstd if mean is None else mean, rstd), x, residual, w, b, seed)
    numbers = (n, stride_x, stride_r, least, factor, eps, norm.offset or 0.0)
    if config is None:
        launch(V1, f"{instance}>", m, 256, *tensors, *numbers)
    else:
        widest = 1024 if norm.seed is None else 512  # the mask's words want registers too: 96 a thread
        d = deal(residual, {**config, "stages": 1, "per": 1}, widest=widest)
        launch(V2, f"{instance}, {d.lanes}, {d.vecs}, {d.threads}>", cdiv(m, d.rows), d.threads, *tensors, m, *numbers)
    return (out, total, mean, rstd) if norm.centred else (out, total, rstd)


def backward(dout: Tensor, dsum: Tensor, sum: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, rstd: Tensor, norm: Norm,
             config: Config = None) -> tuple[Tensor, ...]:  # fmt: skip
    """dx where it is not dresidual too, dresidual, dweight, dbias."""
    made = dx, dr, dweight, dbias = gradients(dout, sum, weight, bias, norm)
    dout, m, n, stride_dout = rows(dout)
    dsum, _, _, stride_dsum = rows(dsum)
    sum, _, _, stride_s = rows(sum)
    rstd = rstd.contiguous()
    mean = rstd if mean is None else mean.contiguous()
    w, b = at(weight, dout), at(bias, dout)
    seed, least, factor = norm.drawn(sum)
    made, dx = (made[1:], dout) if dx is None else (made, dx)  # dout to point to: nothing is written there
    instance = f"backward<{_branch(norm)}, {types(dout, sum, w)}"
    tensors = (dout, dsum, sum, w, mean, rstd, seed)
    numbers = (n, stride_dout, stride_dsum, stride_s, least, factor, norm.offset or 0.0)
    there = weight is not None, bias is not None
    if config is None:
        launch(V1, f"{instance}, {said(norm.layer, there[0])}>", m, 256, dx, dr, *tensors, *numbers)
        if any(there):
            columns = f"columns<{types(dout, sum, w, b)}, {said(norm.layer, *there)}>"
            to_w, to_b = w if weight is None else dweight, b if bias is None else dbias
            launch(V1, columns, cdiv(n, 256), 256, to_w, to_b, dout, sum, mean, rstd, m, n, stride_dout, stride_s)
        return made
    d = deal(sum, config, tensors=3, most=2 * sum.itemsize, widest=512)  # 1024 threads of 64 registers would spill
    blocks = d.blocks(sum, m)
    partial = sum.new_empty((2 * blocks if any(there) else 0, n), dtype=torch.float32)
    slots = d.shared() // 16 * (32 + dout.itemsize * 16 // sum.itemsize)
    launch(
        V2,
        f"{instance}, {said(norm.layer, *there)}, {d.instance}>",
        blocks,
        d.threads,
        dx,
        dr,
        partial,
        *tensors,
        m,
        *numbers,
        shared=slots,
    )
    if any(there):
        add_rows(partial, dweight, dbias)
    return made


def stream(call: Call) -> Tensor:
    return call["residual"] if "residual" in call else call["sum"]


def _upto(most: int) -> Refuse:
    """`most` vectors of 16 bytes of the stream for each of 1024 threads."""

    def refuse(call: Call) -> str | None:
        rest = {n: t for n, t in call.items() if n not in ("mean", "rstd", "seed")}
        return any_row(call) or uneven(rest) or wider_than(stream(call), most)

    return refuse


def whole_rows(call: Call) -> str | None:
    return _upto(4 if "seed" in call else 8)(call)


def whole_rows_backward(call: Call) -> str | None:
    """512 threads hold 32 sums each of a parameter's gradient, and a row of three tensors has to wait in 160 KB."""
    return _upto(3 if call["dout"].itemsize == 4 else stream(call).itemsize)(call)


def _snug(call: Call) -> int:
    """2 vectors a thread, or 3 where fewer threads then have none: of 96 vectors 64 threads would leave 32 places empty, 32 threads none."""
    vectors = cdiv(stream(call).shape[-1] * stream(call).itemsize, 16)
    return min((2, 3), key=lambda v: max(8, power_of_2(cdiv(vectors, v))) * v)


def pick_forward(call: Call) -> dict[str, int]:
    """2 vectors of each tensor a thread: 1024 threads a multiprocessor have 64 KB on their way, three times what latency asks for."""
    return {"vecs": _snug(call), "threads": 128}


def pick_backward(call: Call) -> dict[str, int]:
    """A warp a row up to 2 KB of it, 8 of a block, which adds its warps' sums before it writes them; then 2 or 3 vectors a thread. 512 threads a
    multiprocessor, as the sums and the weight take 96 registers and more, and two rows of three tensors wait or arrive."""
    size, vecs = stream(call).shape[-1] * stream(call).itemsize, _snug(call)
    if size <= 2048:
        return {"vecs": max(1, cdiv(size, 512)), "threads": 256, "stages": 2, "per": 2}
    return {"vecs": vecs, "threads": 256, "stages": 2, "per": max(1, 512 // power_of_2(cdiv(size, 16 * vecs)))}


REGISTERS = tuple({"vecs": v, "threads": t} for v, t in ((2, 128), (3, 128), (4, 128), (1, 128), (6, 128), (8, 128), (2, 256), (2, 64)))
WALKS = tuple(
    {"vecs": v, "threads": 256, "stages": s, "per": p}
    for v, s, p in (
        (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 3, 2), (2, 1, 2), (1, 2, 1), (1, 2, 2), (1, 2, 4), (3, 2, 2), (3, 2, 8), (4, 2, 1), (4, 1, 2)
    )
)  # fmt: skip


def _wider_than_one(call: Call) -> str | None:
    return serial(4096)(call) or one_column(call)


def forward_rungs(run: Callable[..., Any]) -> tuple[Kernel, ...]:
    """`run` takes the operator's arguments, and a config that the first rung is not given."""
    return (
        Kernel(
            "cuda.v2_rows",
            run,
            "the row in registers, 16 bytes an access",
            whole_rows,
            REGISTERS,
            pick_forward,
            sources=(V2,),
            limits=ELSEWHERE,
        ),
        Kernel("cuda.v1_naive", run, "a block a row, sums halved in shared memory", serial(4096), sources=(V1,)),
    )


def backward_rungs(run: Callable[..., Any]) -> tuple[Kernel, ...]:
    return (
        Kernel("cuda.v2_rows", run, "row after row, the parameters' gradients in registers", whole_rows_backward, WALKS, pick_backward,
               sources=(V2, ADD_ROWS), limits=ELSEWHERE),
        Kernel("cuda.v1_naive", run, "a block a row, then a thread a column", _wider_than_one, sources=(V1,)),
    )  # fmt: skip
