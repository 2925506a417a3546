"""Transpose in CUDA C++: what a warp's request costs, in global memory first and in shared memory then. One launcher serves v1 to v4."""

from torch._subclasses.fake_tensor import FakeTensor

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv

TILE, ROWS = 32, 8


def _tiles(source):
    def transpose(x):
        *batch, n, k = x.shape
        out = x.new_empty((*batch, k, n))
        if not x.numel():
            return out
        x = x.reshape(-1, n, k)  # a view where the leading axes collapse, whatever the strides of a matrix
        tiles = x.shape[0] * cdiv(n, TILE) * cdiv(k, TILE)
        launch(source, f"transpose<{CTYPE[x.dtype]}>", tiles, (TILE, ROWS), out, x, n, k, *x.stride())
        return out

    return transpose


def _vectors(source):
    def transpose(x, *, config):
        *batch, n, k = x.shape
        out = x.new_empty((*batch, k, n))
        if not x.numel():
            return out
        x = x.reshape(-1, n, k)
        vectors_n, vectors_k, each = config["vectors_n"], config["vectors_k"], config["each"]
        instance = f"transpose<{CTYPE[x.dtype]}, {vectors_n}, {vectors_k}, {each}>"
        width, threads = 16 // x.itemsize, vectors_n * vectors_k // each
        tiles = x.shape[0] * cdiv(n, vectors_n * width) * cdiv(k, vectors_k * width)
        launch(source, instance, tiles, threads, out, x, n, k, *x.stride()[:2], config["group"])
        return out

    return transpose


def _no_vectors(call):
    """Why rows are not whole vectors of 16 bytes on both sides, or None."""
    (x,) = call.values()
    width = 16 // x.itemsize
    for letter, size in zip("NK", x.shape[-2:]):
        if size % width:
            return f"{letter} is {size}, and it moves {width} elements at a time"
    if x.numel() and x.stride(-1) != 1:
        return f"neighbours in a row of x lie {x.stride(-1)} elements apart, and it reads {width} of them at a time"
    for stride in x.stride()[:-1]:
        if stride % width:
            return f"rows of x lie {stride} elements apart, and it reads {width} at a time"
    if not isinstance(x, FakeTensor) and x.data_ptr() % 16:
        return f"x begins {x.data_ptr() % 16} bytes past a multiple of 16, and it reads 16 bytes at a time"
    return None


# a tile in vectors of 16 bytes. 16 x 16: runs of 256 bytes on both sides, 32 KiB a block (fp16; 16 KiB fp32) of 256 threads that each have 8
# (fp32: 4) loads in flight; 22 KiB a multiprocessor cover the latency of the memory. group: tiles down before one to the right
_CONFIGS = tuple(
    {"vectors_n": n, "vectors_k": k, "each": e, "group": g}
    for n, k, e, g in (
        (16, 16, 1, 8),
        (8, 8, 1, 8),
        (16, 16, 1, 1),
        (16, 16, 1, 32),
        (16, 16, 2, 8),
        (16, 8, 1, 8),
        (8, 16, 1, 8),
        (8, 32, 1, 8),
    )
)


def _pick(call):
    """The large tile where there are enough for two blocks on each of 132 multiprocessors."""
    (x,) = call.values()
    return _CONFIGS[0] if x.numel() * x.itemsize**2 >= 2 * 132 * 256 * 256 else _CONFIGS[1]


_TILES = (  # the highest first
    ("v4_swizzled", "the column xored with the row: 1 wavefront, nothing wasted"),
    ("v3_padded", "a bank more a row: 1 wavefront a load instead of 32"),
    ("v2_shared", "a tile turned in shared memory, whole lines on both sides"),
    ("v1_naive", "read along rows, written where it belongs"),
)


def _kernels():
    vector = Source.beside(__file__, "v5_vector.cu")

    def refuse(call):
        return off_gpu(*call.values()) or _no_vectors(call)

    yield Kernel("cuda.v5_vector", _vectors(vector), "16 bytes an access on both sides", refuse, _CONFIGS, _pick, sources=(vector,))
    for name, idea in _TILES:
        source = Source.beside(__file__, f"{name}.cu")
        yield Kernel(f"cuda.{name}", _tiles(source), idea, lambda call: off_gpu(*call.values()), sources=(source,))


FORWARD = tuple(_kernels())
BACKWARD = FORWARD  # the same kernels: dout is turned back
