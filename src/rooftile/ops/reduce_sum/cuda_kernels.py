"""The sum of all elements in CUDA C++: fewer and fewer instructions, barriers and requests for the same bytes. Sums are float32, of float64
float64. One launcher serves v2 to v4: it adds the blocks' sums by the same kernel, level by level, until one number is left."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK, misaligned, once
from rooftile.ops._shared.launch import cdiv, dense_like, processors


def _real(x):
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _atomics(source):
    def reduce_sum(x):
        x = x.contiguous()
        total, out = x.new_empty((), dtype=torch.float64), x.new_empty(())
        launch(source, "clear", 1, 1, total)
        launch(source, f"sum<{CTYPE[x.dtype]}>", once(x), BLOCK, total, x, x.numel())
        launch(source, f"finish<{CTYPE[x.dtype]}>", 1, 1, out, total)
        return out

    return reduce_sum


def _levels(source, dynamic):
    def reduce_sum(x, config=None):
        x = x.contiguous()
        block = config["block"] if config else BLOCK
        out, real = x.new_empty(()), _real(x)
        shared = block * real.itemsize if dynamic else 0
        while True:
            blocks = max(1, cdiv(x.numel(), block))  # of nothing one block makes the 0
            sums = out if blocks == 1 else x.new_empty(blocks, dtype=real)
            launch(source, f"sum<{CTYPE[x.dtype]}, {CTYPE[sums.dtype]}>", blocks, block, sums, x, x.numel(), shared=shared)
            if blocks == 1:
                return out
            x = sums

    return reduce_sum


def _vectors(source):
    def reduce_sum(x, *, config):
        x = x.contiguous()
        n, threads, each = x.numel(), config["threads"], config["each"]
        share = threads * each * (16 // x.itemsize)
        blocks = max(1, min(cdiv(n, share), config["per_sm"] * processors(x)))
        out = x.new_empty(())
        sums = out if blocks == 1 else x.new_empty(blocks, dtype=_real(x))
        launch(source, f"sum<{CTYPE[x.dtype]}, {CTYPE[sums.dtype]}, {threads}, {each}>", blocks, threads, sums, x, n)
        if blocks > 1:
            launch(source, f"join<{CTYPE[sums.dtype]}, {CTYPE[x.dtype]}, 1024>", 1, 1024, out, sums, blocks)
        return out

    return reduce_sum


def _fill(source):
    def reduce_sum_backward(dout, x):
        dx = dense_like(x)
        launch(source, f"fill<{CTYPE[dx.dtype]}>", once(dx, 4 * 16 // dx.itemsize), BLOCK, dx, dout, dx.numel())
        return dx

    return reduce_sum_backward


# 2048 threads a multiprocessor with 4 vectors in flight are 128 KiB of it, where 4200 GB/s over 700 ns ask for 22; per_sm counts blocks, and
# beyond what fits at a time the device hands them out as others end, so that multiprocessors that are served slower end no later
_CONFIGS = tuple(
    {"threads": t, "each": e, "per_sm": p}
    for t, e, p in (
        (256, 4, 64),
        (512, 4, 16),
        (512, 4, 4),
        (256, 4, 8),
        (256, 8, 32),
        (512, 8, 8),
        (1024, 4, 2),
        (512, 2, 16),
        (256, 4, 128),
        (256, 2, 64),
        (256, 2, 128),
        (512, 4, 32),
        (512, 2, 64),
        (128, 4, 128),
    )
)


def _kernels():
    vector, shuffle, dynamic, shared, atomics = (
        Source.beside(__file__, f"{name}.cu") for name in ("v5_vector", "v4_shuffle", "v3_dynamic", "v2_shared", "v1_atomics")
    )

    def refuse(call):
        return off_gpu(call["x"])

    def narrow(call):
        return off_gpu(call["x"]) or misaligned(16, call)

    blocks = tuple({"block": b} for b in (1024, 512, 256))
    yield Kernel(
        "cuda.v5_vector", _vectors(vector), "16 bytes an access, several in flight, two stages", narrow, _CONFIGS, sources=(vector,)
    )
    yield Kernel("cuda.v4_shuffle", _levels(shuffle, False), "warps add in registers", refuse, blocks, sources=(shuffle,))
    yield Kernel(
        "cuda.v3_dynamic", _levels(dynamic, True), "the launch says how large a block's tree is", refuse, blocks, sources=(dynamic,)
    )
    yield Kernel("cuda.v2_shared", _levels(shared, False), "a tree in shared memory, level by level", refuse, sources=(shared,))
    why = "atomic additions come in whatever order blocks run in"
    yield Kernel("cuda.v1_atomics", _atomics(atomics), "an atomic addition an element", refuse, sources=(atomics,), varies=why)


FORWARD = tuple(_kernels())
_LAST = FORWARD[0].sources[0]
BACKWARD = (Kernel("cuda.v5_vector", _fill(_LAST), "16 bytes a store, four a thread", lambda call: off_gpu(call["x"]), sources=(_LAST,)),)
