"""Adding a number to an array in CUDA C++: a thread an element, then 16 bytes an access."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK, misaligned, once


def _forward(source, width):
    def increment(x, value):
        x = x.contiguous()
        out = torch.empty_like(x)
        kind, number = ("float", float(value)) if x.is_floating_point() else ("int", int(value))
        blocks = once(x, width // x.itemsize or 1)
        launch(source, f"increment<{CTYPE[x.dtype]}, {kind}>", blocks, BLOCK, out, x, number, x.numel())
        return out

    return increment


def _backward(source, width):
    def increment_backward(dout):
        dout = dout.contiguous()
        dx = torch.empty_like(dout)
        launch(source, f"copy<{CTYPE[dout.dtype]}>", once(dout, width // dout.itemsize or 1), BLOCK, dx, dout, dout.numel())
        return dx

    return increment_backward


RUNGS = (  # name, bytes an access (1: an element's), idea; the highest first
    ("v2_vector", 16, "16 bytes an access"),
    ("v1_naive", 1, "a thread an element"),
)


def _rung(run, argument, name, width, idea):
    source = Source.beside(__file__, f"{name}.cu")

    def refuse(call):
        return off_gpu(call[argument]) or misaligned(width, call)

    return Kernel(f"cuda.{name}", run(source, width), idea, refuse, sources=(source,))


FORWARD = tuple(_rung(_forward, "x", *rung) for rung in RUNGS)
BACKWARD = tuple(_rung(_backward, "dout", *rung) for rung in RUNGS)
