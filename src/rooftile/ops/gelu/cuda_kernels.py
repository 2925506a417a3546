"""GELU in CUDA C++: the same arithmetic as the Triton kernel, behind accesses of one element, of two, and of 16 bytes."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK, misaligned, once
from rooftile.ops._shared.launch import cdiv

V4 = Source.beside(__file__, "v4_flight.cu")
ACT = {"none": "Gelu", "tanh": "GeluTanh"}
CONFIGS = tuple({"vecs": v, "threads": t} for v in (1, 2, 4) for t in (128, 256))


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


def flight(x, approximate, *, config):
    x = x.contiguous()
    out = torch.empty_like(x)
    vecs, block = config["vecs"], config["threads"]
    act = "GeluOf16" if approximate == "none" and x.itemsize == 2 else ACT[approximate]
    launch(
        V4, f"gelu<{CTYPE[x.dtype]}, {act}, {vecs}, {block}>", cdiv(x.numel(), 16 // x.itemsize * vecs * block), block, out, x, x.numel()
    )
    return out


def flight_backward(dout, x, approximate, *, config):
    dout, x = dout.contiguous(), x.contiguous()
    dx = torch.empty_like(x)
    vecs, block = config["vecs"], config["threads"]
    launch(
        V4,
        f"gelu_backward<{CTYPE[x.dtype]}, {ACT[approximate]}, {vecs}, {block}>",
        cdiv(x.numel(), 16 // x.itemsize * vecs * block),
        block,
        dx,
        dout,
        x,
        x.numel(),
    )
    return dx


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


def _top(run, pick):
    idea = "several vectors a thread on their way; Phi as an exponential times a polynomial"
    return Kernel(
        "cuda.v4_flight", run, idea, lambda call: off_gpu(call["x"]) or misaligned(16, call), CONFIGS, lambda call: pick, sources=(V4,)
    )


FORWARD = (_top(flight, {"vecs": 1, "threads": 128}), *(_rung(_forward, *rung) for rung in RUNGS))
BACKWARD = (_top(flight_backward, {"vecs": 1, "threads": 128}), *(_rung(_backward, *rung) for rung in RUNGS))
