"""Dropout in CUDA C++: a Philox call for each element, and one for four neighbours behind accesses of 16 bytes."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK, misaligned
from rooftile.ops._shared.launch import cdiv
from rooftile.ops._shared.philox import scale, threshold

V1, V2 = (Source.beside(__file__, f"{name}.cu") for name in ("v1_naive", "v2_vector"))


def _launch(source, template, block, each, x, seed, p):
    x = x.contiguous()
    out, n = torch.empty_like(x), x.numel()
    launch(source, f"dropout<{CTYPE[x.dtype]}{template}>", cdiv(n, block * each), block, out, x, seed, n, threshold(p), scale(p))
    return out


def naive(x, seed, p):
    return _launch(V1, "", BLOCK, 1, x, seed, p)


def vector(x, seed, p, *, config):
    vecs, block = config["vecs"], config["threads"]
    return _launch(V2, f", {vecs}, {block}", block, vecs * 16 // x.itemsize, x, seed, p)


def _x(call):
    return call["x"] if "x" in call else call["dout"]


def _any(call):
    return off_gpu(_x(call))


def _even(call):
    return _any(call) or misaligned(16, {n: t for n, t in call.items() if n != "seed"})


def pick(call):
    """Two vectors a thread: 32 bytes under way from each while 16 words are drawn, 48 KB a multiprocessor at 1536 threads, twice what the
    latency of memory asks for. One where x is small, so that more threads share it."""
    return CONFIGS[0] if _x(call).numel() >= 1 << 22 else CONFIGS[1]


CONFIGS = tuple({"vecs": v, "threads": t} for v, t in ((2, 256), (1, 256), (4, 256), (2, 128), (4, 128), (2, 512), (1, 512)))
RUNGS = (
    Kernel("cuda.v2_vector", vector, "16 bytes an access, a Philox call for four neighbours", _even, CONFIGS, pick, sources=(V2,)),
    Kernel("cuda.v1_naive", naive, "a thread and a Philox call an element", _any, sources=(V1,)),
)
FORWARD = BACKWARD = RUNGS  # the same mask on another tensor
