"""Loss and gradient at once, of rows too long for two blocks a multiprocessor: a cluster of blocks a row."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_rows import no_clusters
from rooftile.ops._shared.launch import cdiv
from rooftile.ops.cross_entropy.cuda_kernels import PARKED, _even, _flag, _in_place
from rooftile.ops.cross_entropy.reference import check_target

V7 = Source.beside(__file__, "v7_cluster.cu")
WHOLE = PARKED[0]["park"]  # bytes of a row that a block of v6_ahead holds beside another's
SHARE = 32 * 1024  # of a row, by a block of a cluster that makes do with 256 threads: eight vectors each
MOST = 220 * 1024  # by a block that shares it with nobody


def _share(size, cluster):
    """Bytes of a row that each block of a cluster holds."""
    return 16 * cdiv(size // 16, cluster)


def ahead(logits, target, ignore_index, label_smoothing, z_loss, softcap, *, config):
    check_target(target, logits.shape[1], ignore_index)
    (m, v), loss = logits.shape, logits.new_empty(logits.shape[0], dtype=torch.float32)
    cluster, threads, size = config["cluster"], config["threads"], _share(v * logits.itemsize, config["cluster"])
    instance = f"cross_entropy_ahead<{CTYPE[logits.dtype]}, {_flag(label_smoothing)}, {_flag(softcap)}, {cluster}, {threads}>"
    launch(V7, instance, m * cluster, threads, loss, logits, target.contiguous(), v, logits.stride(0), ignore_index, label_smoothing, z_loss,
           softcap, size // 16, shared=size)  # fmt: skip
    return loss


def _held(call):
    x = call["logits"]
    size, longest = x.shape[1] * x.itemsize, 8 * MOST
    return (
        _even(call)
        or no_clusters(x)
        or (f"a row of {size} bytes is longer than the {longest} that 8 blocks hold" if size > longest else None)
    )


def _short(call):
    """v6's blocks wait for nobody."""
    size = call["logits"].shape[1] * call["logits"].itemsize
    return f"a row of {size} bytes is held by a block alone; beyond {WHOLE} it is not" if size <= WHOLE else None


def pick(call):
    """Eight blocks a row, small ones where its parts are: more rows are under way, and ends and beginnings of theirs meet. A soft cap takes so many registers that
    half the threads a block let more blocks be under way."""
    size = call["logits"].shape[1] * call["logits"].itemsize
    threads = 256 if _share(size, 8) <= SHARE else 512
    return {"cluster": 8, "threads": threads // 2 if call["softcap"] else threads}


CLUSTERS = tuple(
    {"cluster": c, "threads": t} for c, t in ((8, 256), (8, 512), (8, 128), (4, 512), (2, 512), (4, 256), (2, 256), (4, 1024), (2, 1024))
)
AHEAD = (
    Kernel("cuda.v7_cluster", ahead, "the row waits in the shared memory of a cluster of blocks", _in_place(_held), CLUSTERS, pick, sources=(V7,),
           declines=_short),
)  # fmt: skip
