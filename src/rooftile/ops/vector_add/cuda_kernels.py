"""Vector addition in CUDA C++: the ladder from a thread an element to 16 bytes an access. One launcher serves every rung."""

import torch

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK, misaligned, once, resident


def _forward(source, blocks, block=BLOCK):
    def add(x, y):
        x, y = x.contiguous(), y.contiguous()
        out = torch.empty_like(x)
        launch(source, f"add<{CTYPE[x.dtype]}>", blocks(x), block, out, x, y, x.numel())
        return out

    return add


def _backward(source, blocks):
    def add_backward(dout):
        dout = dout.contiguous()
        dx = torch.empty_like(dout)
        launch(source, f"copy<{CTYPE[dout.dtype]}>", blocks(dout), BLOCK, dx, dout, dout.numel())
        return dx

    return add_backward


def _vectors(x):
    return once(x, 16 // x.itemsize)  # one vector a thread: a striding grid keeps fewer loads in flight, 4 % of the time here


ELSEWHERE = Limits(spill_bytes_elsewhere=96)  # sm_100 wants more registers for as many loads in flight
RUNGS = (  # name, blocks, bytes an access (where it is more than an element's), idea; the highest first
    ("v3_vector", _vectors, 16, "16 bytes an access"),
    ("v2_grid_stride", resident, 1, "no more blocks than the device holds, striding"),
    ("v1_naive", once, 1, "a thread an element"),
)


def _fewer(x):
    """A vector a thread, half as many threads a block."""
    return once(x, 8 // x.itemsize)


def _rung(run, argument, name, blocks, width, idea, *more):
    source = Source.beside(__file__, f"{name}.cu")

    def refuse(call):
        return off_gpu(call[argument]) or misaligned(width, call)

    return Kernel(f"cuda.{name}", run(source, blocks, *more), idea, refuse, sources=(source,), limits=ELSEWHERE)


FORWARD = (
    _rung(_forward, "x", "v5_evict_last", _fewer, 16, "what is written leaves the L2 before what is read", BLOCK // 2),
    _rung(_forward, "x", "v4_fewer_threads", _fewer, 16, "1280 threads a multiprocessor, not 2048", BLOCK // 2),
    *(_rung(_forward, "x", *rung) for rung in RUNGS),
)
BACKWARD = tuple(_rung(_backward, "dout", *rung) for rung in RUNGS)
