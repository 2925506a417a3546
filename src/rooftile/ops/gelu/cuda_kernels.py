"""GELU in CUDA C++: the same arithmetic as the Triton kernel, behind accesses of one element, of two, and of 16 bytes."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK, misaligned, once


def _forward(source, width):
    def gelu(x, approximate):
        x = x.contiguous()
        out = torch.empty_like(x)
        instance = f"gelu<{CTYPE[x.dtype]}, {'true' if approximate == 'tanh' else 'false'}>"
        launch(source, instance, once(x, width // x.itemsize or 1), BLOCK, out, x, x.numel())
        return out

    return gelu


def _backward(source, width):
    def gelu_backward(dout, x, approximate):
        dout, x = dout.contiguous(), x.contiguous()
        dx = torch.empty_like(x)
        instance = f"gelu_backward<{CTYPE[x.dtype]}, {'true' if approximate == 'tanh' else 'false'}>"
        launch(source, instance, once(x, width // x.itemsize or 1), BLOCK, dx, dout, x, x.numel())
        return dx

    return gelu_backward


RUNGS = (  # name, bytes an access (1: an element's), idea; the highest first
    ("v3_vector", 16, "16 bytes an access"),
    ("v2_half2", 4, "two 16-bit elements an access"),
    ("v1_naive", 1, "a thread an element"),
)


def _rung(run, name, width, idea):
    source = Source.beside(__file__, f"{name}.cu")

    def refuse(call):
        if width == 4 and call["x"].dtype == torch.float32:
            return "x is float32, and it pairs elements of 16 bits"
        return off_gpu(call["x"]) or misaligned(width, call)

    return Kernel(f"cuda.{name}", run(source, width), idea, refuse, sources=(source,))


FORWARD = tuple(_rung(_forward, *rung) for rung in RUNGS)
BACKWARD = tuple(_rung(_backward, *rung) for rung in RUNGS)
