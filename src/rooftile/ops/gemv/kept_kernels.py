"""Flat matrices with x in registers, beside the file of the other rungs and not in it: what was measured of those still speaks of them.

Floor: the matrix and x read once. 768 threads with five or six vectors of a row each are 64 KB under way a multiprocessor, where 4.2 TB/s over 700 ns ask for 22.
"""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, processors
from rooftile.ops.gemv.cuda_kernels import _no_vectors

KEPT = Source.beside(__file__, "v5_kept.cu")
THREADS, EACH, PER_SM, MOST = 256, 6, 3, 64  # of a block, vectors of a row each; blocks of a multiprocessor; rows
LEAST = 6 << 20  # bytes of a row: of fewer a thread has less than four vectors


def kept(a, x):
    (m, k), x = a.shape, x.contiguous()
    vectors, places = k * a.itemsize // 16, PER_SM * processors(a)
    waves = max(1, cdiv(vectors, places * THREADS * EACH))
    # whole lines of 128 bytes; equal ones, so that no multiprocessor has more than another
    share = 8 * max(1, cdiv(vectors, 8 * waves * places))
    blocks = max(1, cdiv(vectors, share))
    partial, out = a.new_empty((m, blocks), dtype=torch.float32), a.new_empty(m)
    launch(KEPT, f"slices<{CTYPE[a.dtype]}>", blocks if m else 0, THREADS, partial, a, x, m, k, a.stride(0), share)
    launch(KEPT, f"join<{CTYPE[a.dtype]}>", m, THREADS, out, partial, blocks)
    return out


def _refuses(call):
    m = call["a"].shape[0]
    return f"there are {m} rows, and a block keeps the sums of {MOST} at most" if m > MOST else off_gpu(call["a"]) or _no_vectors(call)


def _short(call):
    a = call["a"]
    size = a.shape[1] * a.itemsize
    return f"a row has {size} bytes, and to fill the device it pays from {LEAST}" if size < LEAST else None


FORWARD = (
    Kernel(
        "cuda.v5_kept",
        kept,
        "flat matrices: x kept in registers, all blocks read row after row",
        _refuses,
        sources=(KEPT,),
        declines=_short,
    ),
)
