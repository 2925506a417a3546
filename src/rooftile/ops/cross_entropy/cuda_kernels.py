"""Cross entropy in CUDA C++: from a thread a row to logits that arrive 16 bytes at a time while those before them are summed."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_rows import long_sums, threads, too_long, uneven
from rooftile.ops._shared.launch import cdiv, power_of_2, resident, rows
from rooftile.ops.cross_entropy import reference
from rooftile.ops.cross_entropy.reference import check_target

V1, V2, V3, V4, V5, V6, TOTAL = (
    Source.beside(__file__, f"{name}.cu") for name in ("v1_naive", "v2_block", "v3_online", "v4_vector", "v5_rows", "v6_ahead", "total")
)
SHORT = 2048  # bytes of a row: 32 lanes with 4 vectors of 16 each


def _flag(value):
    return "true" if value else "false"


def _naive(x, m, v):
    return "", cdiv(m, 128), 128, 0


def _block(x, m, v):
    return "", m, threads(v, 16), 0


def _persistent(config):
    """A grid that stays: `per` blocks a multiprocessor, or so many fewer that each takes as many rows as the others: of 4096 rows on 528 blocks
    some have 7 and some 8, and on 512 all 8. Simulated: 2, so that every block takes several rows."""

    def shape(x, m, v):
        block, vecs, stages, per = (config[n] for n in ("threads", "vecs", "stages", "per"))
        return f", {vecs}, {stages}, {block}", cdiv(m, cdiv(m, resident(x, per))), block, 16 * vecs * stages * block

    return shape


def _lanes(x, vecs, most):
    """Threads a row, a power of two, with at most `vecs` vectors each where `most` threads are enough for that."""
    return min(most, power_of_2(cdiv(x.shape[1] * x.itemsize, 16 * vecs)))


def _short(config):
    def shape(x, m, v):
        block, lanes = config["threads"], _lanes(x, config["vecs"], 32)
        vecs = cdiv(v * x.itemsize, 16 * lanes)
        return f", {vecs}, {lanes}, {block}", cdiv(m, block // lanes), block, 0

    return shape


def _forward(source, shape, logits, target, ignore_index, label_smoothing, z_loss, softcap, reduction):
    check_target(target, logits.shape[1], ignore_index)
    x, m, v, stride = rows(logits)
    if m == 0:  # nothing to launch over, and the loss of nothing is still a number
        return reference.cross_entropy(logits, target, ignore_index, label_smoothing, z_loss, softcap, reduction)
    target, none = target.contiguous(), reduction == "none"
    row, peak, logsum, miss = (x.new_empty(m, dtype=torch.float32) for _ in range(4))
    count = x.new_empty((), dtype=torch.float32)
    template, blocks, block, shared = shape(x, m, v)
    instance = f"cross_entropy<{CTYPE[x.dtype]}{template}, {_flag(label_smoothing)}, {_flag(softcap)}>"
    launch(source, instance, blocks, block, row, count, peak, logsum, miss, x, target, m, v, stride, ignore_index, label_smoothing, z_loss,
           softcap, none, shared=shared)  # fmt: skip
    loss = row
    if not none:
        loss = x.new_empty((), dtype=torch.float32)
        launch(TOTAL, "total", 1, 1024, loss, count, row, target, m, ignore_index, reduction == "mean")
    return loss, count, peak, logsum, miss


def naive(*call):
    return _forward(V1, _naive, *call)


def block(*call):
    return _forward(V2, _block, *call)


def online(*call, config):
    return _forward(V3, _persistent(config), *call)


def short_rows(*call, config):
    return _forward(V5, _short(config), *call)


def _differentiate(dx, x, dloss, target, count, peak, logsum, miss, ignore, smoothing, z, softcap, config):
    m, v = x.shape
    if config is None:
        source, template, blocks, block, walk = V1, "", cdiv(m * v, 256), 256, ()
    else:
        block, vecs, walk = config["threads"], config["vecs"], (config["walk"],)
        lanes = _lanes(x, vecs, block)
        source, template = V4, f", {vecs}, {lanes}, {block}"
        blocks = cdiv(m, block // lanes) * cdiv(v * x.itemsize, 16 * vecs * lanes * walk[0])
    launch(source, f"cross_entropy_backward<{CTYPE[x.dtype]}{template}, {_flag(softcap)}>", blocks, block, dx, dloss, x, target.contiguous(),
           count, peak.contiguous(), logsum.contiguous(), miss.contiguous(), m, v, dx.stride(0), dloss.stride(0) if dloss.dim() else 0,
           x.stride(0), ignore, smoothing, z, softcap, *walk)  # fmt: skip


def backward(dloss, logits, *rest, config=None):
    dx = logits.new_empty(logits.shape)
    _differentiate(dx, rows(logits)[0], dloss, *rest, config)
    return dx


def overwrite(dloss, logits, *rest, config=None):
    _differentiate(logits, logits, dloss, *rest, config)


def ahead(logits, target, ignore_index, label_smoothing, z_loss, softcap, *, config):
    check_target(target, logits.shape[1], ignore_index)
    (m, v), vectors = logits.shape, logits.shape[1] * logits.itemsize // 16
    loss, parked = logits.new_empty(m, dtype=torch.float32), min(vectors, config["park"] // 16)
    instance = f"cross_entropy_ahead<{CTYPE[logits.dtype]}, {_flag(label_smoothing)}, {_flag(softcap)}>"
    launch(V6, instance, m, min(config["threads"], threads(vectors, 4)), loss, logits, target.contiguous(), v, logits.stride(0), ignore_index,
           label_smoothing, z_loss, softcap, parked, shared=16 * parked)  # fmt: skip
    return loss


def _any(call):
    return off_gpu(call["logits"]) or too_long(call["logits"])


def _even(call):
    return _any(call) or uneven({"logits": call["logits"]})


def _long(call):
    size = call["logits"].shape[1] * call["logits"].itemsize
    return _even(call) or (f"a row of {size} bytes is longer than the {SHORT} that a warp's registers hold" if size > SHORT else None)


def _in_place(refuse):
    def refused(call):
        x = call["logits"]
        if x.numel() and not (x.stride(1) == 1 and x.stride(0) >= x.shape[1]):
            return f"logits with strides {list(x.stride())} are no rows to write into"
        return refuse(call)

    return refused


def _narrow(call):
    """Beside rows of 128 threads and 2 vectors the barriers of a block a row are most of the work."""
    size = call["logits"].shape[1] * call["logits"].itemsize
    return f"a row of {size} bytes leaves most of a block's threads without work; from 4096 it does not" if size < 4096 else None


def pick(call):
    """128 KB in flight a multiprocessor, six times what 4.2 TB/s and 700 ns ask for, as a row's end and its barrier must be bridged too. A
    row of fewer than 2 steps of a block's 1024 vectors goes to smaller blocks, of which more share a multiprocessor."""
    size = call["logits"].shape[1] * call["logits"].itemsize
    return ONLINE[0] if size >= 1 << 15 else ONLINE[1] if size >= 1 << 13 else ONLINE[2]


def pick_tile(call):
    """4096 elements of 16 bits a tile, 64 bytes in flight a thread beside those it works on. With a soft cap a block's beginning is shared by four tiles; else two
    are enough, and a multiprocessor's blocks end less alike."""
    return TILES[0] if call["softcap"] else TILES[1]


def pick_park(call):
    """Two blocks a multiprocessor. A longer row leaves what 110 KB do not hold to L2, and takes all threads: of 256 KB 264 rows leave 39 MB."""
    return PARKED[0] if call["logits"].shape[1] * call["logits"].itemsize <= PARKED[0]["park"] else PARKED[1]


PARKED = tuple({"park": p * 1024, "threads": t} for p, t in ((110, 512), (110, 1024), (160, 1024), (74, 512), (52, 512)))
ONLINE = tuple(
    {"threads": t, "vecs": v, "stages": s, "per": p}
    for t, v, s, p in ((256, 4, 2, 4), (256, 2, 3, 4), (128, 2, 3, 8), (256, 2, 4, 4), (512, 2, 3, 2), (512, 4, 2, 2), (256, 4, 3, 3), (1024, 2, 4, 1))
)  # fmt: skip
TILES = tuple(
    {"threads": t, "vecs": v, "walk": w}
    for t, v, w in ((128, 4, 4), (128, 4, 2), (128, 2, 8), (256, 4, 4), (256, 2, 4), (256, 2, 1), (512, 2, 1))
)

ROWS = tuple({"vecs": v, "threads": t} for v, t in ((2, 256), (1, 256), (4, 256), (2, 128), (1, 512)))

FORWARD = (
    Kernel("cuda.v5_rows", short_rows, "part of a warp a short row, in registers", _long, ROWS, sources=(V5, TOTAL)),
    Kernel("cuda.v3_online", online, "one read, the next stages on their way, past the row's end too", _even, ONLINE, pick,
           sources=(V3, TOTAL), declines=_narrow),
    Kernel("cuda.v2_block", block, "a block a row, two reads", _any, sources=(V2, TOTAL)),
    Kernel("cuda.v1_naive", naive, "a thread a row, two reads", lambda call: _any(call) or long_sums(call["logits"], 65536),
           sources=(V1, TOTAL)),
)  # fmt: skip
BACKWARD = (
    Kernel("cuda.v4_vector", backward, "16 bytes an access, several in flight", _even, TILES, pick_tile, sources=(V4,)),
    Kernel("cuda.v1_naive", backward, "a thread an element", _any, sources=(V1,)),
)
OVERWRITE = (
    Kernel(
        "cuda.v4_vector", overwrite, "16 bytes an access, into the logits' own memory", _in_place(_even), TILES, pick_tile, sources=(V4,)
    ),
    Kernel("cuda.v1_naive", overwrite, "a thread an element, into the logits' own memory", _in_place(_any), sources=(V1,)),
)
AHEAD = (
    Kernel("cuda.v6_ahead", ahead, "a row waits in shared memory and leaves it as its gradient", _in_place(_even), PARKED, pick_park,
           sources=(V6,), declines=_narrow),
)  # fmt: skip
