"""Matrix times vector in CUDA C++: a thread, a warp, a block a row, and a row over many blocks. One launcher serves v1 and v2."""

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK
from rooftile.ops._shared.cuda_partials import ADD_ROWS, add_rows
from rooftile.ops._shared.launch import cdiv, dense_like, processors
from rooftile.ops.gemv.triton_kernels import one_row

PER_SM = 8  # blocks a multiprocessor before a row is cut


def _rows(source, rows):
    def gemv(a, x):
        (m, k), x = a.shape, x.contiguous()
        out = a.new_empty(m)
        launch(source, f"gemv<{CTYPE[a.dtype]}>", cdiv(m, rows), BLOCK, out, a, x, m, k, *a.stride())
        return out

    return gemv


def _warps(source):
    def gemv(a, x, *, config):
        (m, k), x = a.shape, x.contiguous()
        out = a.new_empty(m)
        instance = f"gemv<{CTYPE[a.dtype]}, {config['rows']}, {config['each']}>"
        launch(source, instance, cdiv(m, 4 * config["rows"]), 128, out, a, x, m, k, a.stride(0))
        return out

    return gemv


def _split(source):
    def gemv(a, x, *, config):
        (m, k), x = a.shape, x.contiguous()
        threads, rows, each = config["threads"], config["rows"], config["each"]
        out, groups, turn = a.new_empty(m), cdiv(m, rows), threads * each
        turns = max(1, cdiv(k * a.itemsize // 16, turn))  # of a block's loop over whole rows; a slice is some of them
        share = cdiv(turns, max(1, min(turns, 65535, PER_SM * processors(a) // max(1, groups))))
        slices = cdiv(turns, share)
        partial = out if slices == 1 else a.new_empty((m, slices), dtype=torch.float32)
        instance = f"gemv<{CTYPE[a.dtype]}, {CTYPE[partial.dtype]}, {threads}, {rows}, {each}>"
        launch(source, instance, (groups, slices), threads, partial, a, x, m, k, a.stride(0), share * turn)
        if slices > 1:
            launch(source, f"join<{CTYPE[a.dtype]}>", cdiv(m, 8), 256, out, partial, m, slices)
        return out

    return gemv


def _gradients(source):
    def gemv_backward(dout, a, x, *, config):
        (m, k), dout, x = a.shape, dout.contiguous(), x.contiguous()
        da, dx = dense_like(a), dense_like(x)
        strips = cdiv(k, 256 * 16 // a.itemsize)
        blocks = max(1, min(cdiv(m, 16), 65535, config["per_sm"] * processors(a) // max(1, strips)))
        if config["apart"]:
            partial, adders = a.new_empty((blocks, k), dtype=torch.float32), cdiv(k, 128)
            launch(source, f"shares<{CTYPE[a.dtype]}>", (strips, blocks), 256, partial, dout, a, m, k, a.stride(0))
            after = adders + strips * cdiv(m, 8)
            launch(source, f"product<{CTYPE[a.dtype]}>", after, 256, da, dx, partial, dout, x, m, k, blocks, adders, strips)
            return da, dx
        partial = dx if blocks == 1 else a.new_empty((blocks, k), dtype=torch.float32)
        instance = f"gradients<{CTYPE[a.dtype]}, {CTYPE[partial.dtype]}>"
        launch(source, instance, (strips, blocks), 256, da, partial, dout, a, x, m, k, a.stride(0))
        if blocks > 1:
            add_rows(partial, dx)
        return da, dx

    return gemv_backward


def _one_row(call):
    """Why Triton's program a row does sooner, or None."""
    m, k = call["a"].shape
    return f"{m} rows of {k} columns are a program each, all of a row in flight at once" if one_row(call) else None


def _no_vectors(call):
    """Why rows of a, or x, do not begin at multiples of 16 bytes, or None."""
    a, x = call["a"], call["x"]
    width = 16 // a.itemsize
    if a.shape[1] > 1 and a.stride(1) != 1:
        return f"neighbours in a row of a lie {a.stride(1)} elements apart, and it reads {width} of them at a time"
    if a.shape[0] > 1 and a.stride(0) % width:
        return f"rows of a lie {a.stride(0)} elements apart, and it reads {width} at a time"
    for name, t in (("a", a), ("x", x)):
        if t.is_contiguous() and not isinstance(t, FakeTensor) and t.data_ptr() % 16:
            return f"{name} begins {t.data_ptr() % 16} bytes past a multiple of 16, and it reads 16 bytes at a time"
    return None


# 256 threads with 8 vectors of the matrix in flight are 32 KiB a block, 96 a multiprocessor; 4200 GB/s over 700 ns ask for 22. Of 4 rows x is
# read once, from the L1 or L2, at a quarter of the matrix's bytes
_SPLIT = tuple(
    {"threads": t, "rows": r, "each": e}
    for t, r, e in ((256, 4, 2), (128, 4, 2), (256, 2, 4), (256, 1, 8), (256, 8, 1), (128, 2, 4), (128, 1, 4), (256, 4, 1))
)
_WARPS = tuple({"rows": r, "each": e} for r, e in ((2, 4), (4, 2), (1, 4), (1, 8), (2, 2)))
_GRADIENTS = tuple({"per_sm": p, "apart": a} for p, a in ((3, 1), (2, 1), (3, 0), (2, 0), (6, 0), (12, 0)))
FEW_ROWS = 128


def pick_split(call):
    """Few rows, which are cut into slices: two of them a block, 16 KB of each at once. Of 8 KB, and four, a row alone is a twelfth slower, 16 a hundredth."""
    return _SPLIT[2 if call["a"].shape[0] <= FEW_ROWS else 0]


def _kernels():
    split, vector, warp, naive = (Source.beside(__file__, f"{name}.cu") for name in ("v4_split", "v3_vector", "v2_warp", "v1_naive"))

    def narrow(call):
        return off_gpu(call["a"]) or _no_vectors(call)

    def refuse(call):
        return off_gpu(call["a"])

    yield Kernel("cuda.v4_split", _split(split), "a block a few rows, flat matrices cut into slices", narrow, _SPLIT, pick_split,
                 sources=(split,), declines=_one_row)  # fmt: skip
    yield Kernel("cuda.v3_vector", _warps(vector), "16 bytes an access, several in flight", narrow, _WARPS, sources=(vector,))
    yield Kernel("cuda.v2_warp", _rows(warp, 8), "a warp a row", refuse, sources=(warp,))
    yield Kernel("cuda.v1_naive", _rows(naive, 256), "a thread a row", refuse, sources=(naive,))


FORWARD = tuple(_kernels())
_LAST = FORWARD[0].sources[0]


def pick_gradients(call):
    """Read by one launch, written by another: three blocks a multiprocessor, and of 16 bits, twice the sums a thread, the two that fit. Few rows are shared
    among few blocks a strip, and go both ways at once."""
    a = call["a"]
    return _GRADIENTS[2 if a.shape[0] < FEW_ROWS else 0 if a.itemsize == 4 else 1]


def _backward_refuses(call):
    a = call["a"]
    width = 16 // a.itemsize
    if a.shape[1] % width:
        return f"K is {a.shape[1]}, and it writes {width} elements at a time"
    return off_gpu(a) or _no_vectors(call)


BACKWARD = (
    Kernel(
        "cuda.v4_split",
        _gradients(_LAST),
        "strips of columns: read, then written while the last are read and the sums added",
        _backward_refuses,
        _GRADIENTS,
        pick_gradients,
        sources=(_LAST, ADD_ROWS),
        limits=Limits(spill_bytes_elsewhere=8),  # sm_120: one address of the eight rows in flight, at 80 registers
    ),
)
