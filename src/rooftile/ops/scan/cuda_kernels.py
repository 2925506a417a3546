"""Cumulative sums in CUDA C++: two ways to scan in a block, then two ways for blocks to share a row. A gradient is the forward from the
other end."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda import BLOCK
from rooftile.ops._shared.cuda_rows import uneven
from rooftile.ops._shared.launch import cdiv, dense_like, power_of_2, resident, rows

LONGEST = 2**20  # columns that one block walks: a 128th of a row of 2^27 would already keep the other 131 multiprocessors waiting
SEGMENT = 8192  # of v3_three_phase.cu
GROUP = 32  # tiles, and groups of a super-group, of v4_look_back.cu
SHARED = 220 * 1024  # bytes of shared memory of a multiprocessor that tiles may have
TILE = 8192  # columns of a tile of v5_pipeline.cu as it is picked, whatever the dtype
SHORTEST = 4096  # bytes of a row that v5_pipeline.cu takes: 8 warps with a vector a lane


def _sum(x):
    return "float" if x.is_floating_point() else "unsigned"


def _instance(name, x, *rest):
    """`name` with x's type, the type its sums are taken in, and what else it wants to know at compile time."""
    return f"{name}<{', '.join([CTYPE[x.dtype], _sum(x), *(str(r).lower() for r in rest)])}>"


def _block_a_row(source, x, exclusive, reverse):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    if out.numel():
        launch(source, _instance("scan", x, exclusive, reverse), m, BLOCK, out, x, n, stride)
    return out


def _three_phase(source, x, exclusive, reverse):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    if not out.numel():
        return out
    segments = cdiv(n, SEGMENT)
    sums = x.new_empty((m, segments), dtype=torch.float32 if x.is_floating_point() else torch.int32)
    launch(source, _instance("segment_sums", x, reverse), m * segments, BLOCK, sums, x, n, stride, segments)
    launch(source, f"segment_starts<{_sum(x)}>", m, BLOCK, sums, segments)
    launch(source, _instance("scan", x, exclusive, reverse), m * segments, BLOCK, out, x, sums, n, stride, segments)
    return out


def _look_back(source, x, exclusive, reverse, *, config):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    if not out.numel():
        return out
    width, vectors, warps = 16 // x.itemsize, config["vectors"], config["warps"]
    if x.data_ptr() % 16 or (m > 1 and (stride - n) % width):  # a row of x and its row of out are not equally far from a multiple of 16
        width = 1
    each = 32 * vectors * width
    most = n + 2 * (width - 1) * (m > 1 and n % width > 0)  # with what is left over of the first and the last vector of a row
    if most <= warps * each:
        warps = power_of_2(cdiv(most, each))
        per = BLOCK // 32 if warps == 1 else 1
        instance = _instance("rows", x, width, vectors, warps, exclusive, reverse)
        launch(source, instance, cdiv(m, per), 32 * warps * per, out, x, m, n, stride)
        return out
    tiles = cdiv(most, warps * each)
    groups, supers = cdiv(tiles, GROUP), cdiv(tiles, GROUP * GROUP)
    state = x.new_empty(1 + m * (tiles + groups + supers), dtype=torch.int64)
    launch(source, "clear", min(1024, cdiv(state.numel(), BLOCK)), BLOCK, state, state.numel())
    launch(source, _instance("tiles", x, width, vectors, warps, exclusive, reverse), m * tiles, 32 * warps, out, x, state, m, n, stride,
           tiles, groups, supers)  # fmt: skip
    return out


def _pipeline(source, x, exclusive, reverse, *, config):
    out = dense_like(x)
    x, m, n, stride = rows(x)
    if not out.numel():
        return out
    warps = config["warps"]
    vectors = config["vectors"] // (4 // x.itemsize) or 1  # of 16-bit numbers half as many: in registers each is a float
    vectors = min(vectors, power_of_2(cdiv(n * x.itemsize, 16 * 32 * warps)))
    stages = max(2, min(config["stages"], SHARED // config["per"] // (16 * 32 * vectors * warps)))
    lead = min(config["lead"], stages - 1)
    tiles = cdiv(n * x.itemsize, 16 * 32 * vectors * warps)
    state = x.new_empty(1 + m * tiles if tiles > 1 else 0, dtype=torch.int64)
    if tiles > 1:
        launch(source, "clear", min(1024, cdiv(state.numel(), BLOCK)), BLOCK, state, state.numel())
    instance = f"tiles<{CTYPE[x.dtype]}, {_sum(x)}, {vectors}, {warps}, {stages}, {lead}, {config['per']}, {str(exclusive).lower()}, {str(reverse).lower()}>"
    shared = 16 * 32 * vectors * warps * stages
    launch(source, instance, min(m * tiles, resident(x, config["per"])), 32 * warps + 32, out, x, state, m, n, stride, tiles, shared=shared)
    return out


def _tensor(call):
    return call["x"] if "x" in call else call["dout"]


def _any(call):
    return off_gpu(_tensor(call))


def _short(call):
    n = _tensor(call).shape[-1]
    return _any(call) or (f"N={n}: one block walks a row, of {LONGEST} columns at most" if n > LONGEST else None)


def _long(call):
    x = _tensor(call)
    n = x.shape[-1]
    if n * x.itemsize < SHORTEST:
        return f"a row is {n * x.itemsize} bytes, it takes rows of {SHORTEST} and more"
    return _any(call) or uneven(call)


def _one_tile(call):
    n = _tensor(call).shape[-1]
    return (
        f"a row of {n} columns is one tile of at most {TILE}: nothing is to look back at, and more rows are in flight without a ring"
        if n <= TILE
        else None
    )


def pick(call):
    """float32: 8 vectors of 16 bytes in 8 warps, 80 registers a thread, so 3 tiles of 32 KB on a multiprocessor; it writes what it reads at
    16 bytes a nanosecond, so a tile may take 6 us from its ticket to its last store. 16-bit numbers are twice as wide in registers: 4 vectors,
    4 tiles of 16 KB. Short rows have fewer vectors. Simulated: tiles of 32 vectors, so that small rows have many."""
    x = _tensor(call)
    if not x.is_cuda:
        return {"vectors": 1, "warps": 1}
    return {"vectors": min(8 if x.itemsize == 4 else 4, power_of_2(cdiv(x.shape[-1] * x.itemsize, 32 * 16))), "warps": 8}


def pick_pipeline(call):
    """Two blocks of 8 warps a multiprocessor with three slots of 32 KB each, one of them arriving: larger tiles are fewer sums to look back at, and
    6 us from one of a block's tiles to its next. 16-bit numbers are twice as many in a tile: slots of 16 KB, six of them. Simulated: tiles of
    64 vectors, so that small rows have many."""
    x = _tensor(call)
    if not x.is_cuda:
        return {"vectors": 1 if x.shape[-1] * x.itemsize > SHORTEST else 4, "warps": 2, "stages": 3, "lead": 1, "per": 3}
    return PIPELINES[0] if x.itemsize >= 4 else PIPELINES[1]


PIPELINES = tuple(
    dict(zip(("vectors", "warps", "stages", "lead", "per"), c))
    for c in (
        (8, 8, 3, 2, 2),
        (8, 8, 6, 3, 2),
        (8, 8, 6, 4, 2),
        (4, 8, 6, 3, 2),
        (8, 8, 6, 4, 1),
        (8, 16, 3, 2, 1),
        (8, 8, 2, 1, 3),
        (16, 8, 3, 2, 1),
        (8, 16, 6, 4, 1),
    )
)
CONFIGS = tuple({"vectors": v, "warps": w} for v, w in ((8, 8), (4, 8), (4, 16), (8, 4), (8, 16), (16, 4), (2, 8), (1, 8)))
RUNGS = (  # name, launcher, idea, refuse, configs, pick, declines; the highest first
    (
        "v5_pipeline",
        _pipeline,
        "blocks stay: tiles arrive while others are written, sums are out before they are needed",
        _long,
        PIPELINES,
        pick_pipeline,
        _one_tile,
    ),
    ("v4_look_back", _look_back, "one read: tiles look back at the sums before them; 16 bytes an access", _any, CONFIGS, pick),
    ("v3_three_phase", _three_phase, "many blocks a row: sums, sums of sums, then each segment: two reads", _any, (), None),
    ("v2_blelloch", _block_a_row, "a tree up and down: two additions an element", _short, (), None),
    ("v1_hillis_steele", _block_a_row, "a block a row, every sum doubled in reach", _short, (), None),
)


def _rung(backward, name, launcher, idea, refuse, configs, choose, declines=lambda call: None):
    source = Source.beside(__file__, f"{name}.cu")

    def scan(x, exclusive, reverse, **config):
        return launcher(source, x, exclusive, reverse, **config)

    def scan_backward(dout, exclusive, reverse, **config):
        return launcher(source, dout, exclusive, not reverse, **config)

    return Kernel(f"cuda.{name}", scan_backward if backward else scan, idea, refuse, configs, choose, sources=(source,), declines=declines)


FORWARD = tuple(_rung(False, *rung) for rung in RUNGS)
BACKWARD = tuple(_rung(True, *rung) for rung in RUNGS)
