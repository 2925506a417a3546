"""What the CUDA launchers over rows share: who may read 16 bytes at a time, how a row is dealt to threads, how many blocks persist."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from rooftile.core.spec import Call
from rooftile.cuda.launch import off_gpu
from rooftile.ops._shared.launch import cdiv, power_of_2, resident, row

Refuse = Callable[[Call], str | None]
LONGEST = 2**31 - 2**16  # columns: an index of one is an int, with room for a block's stride
ALONE = 16 * 1024  # bytes of a row that a cluster of one takes
PARK = 160 * 1024  # bytes of shared memory a block may ask for on sm_80 and later


def too_long(x: Tensor) -> str | None:
    n = x.shape[-1] if x.dim() else 1
    return None if n <= LONGEST else f"N={n} is longer than the {LONGEST} columns that an int counts here"


def uneven(call: Call) -> str | None:
    """Why rows cannot be read 16 bytes at a time, or None. What has no view as rows will be copied, and copies begin well."""
    for name, t in call.items():
        if not isinstance(t, Tensor) or not t.dim():
            continue
        if t.shape[-1] * t.itemsize % 16 and (t.dim() > 1 or name in ("x", "out", "dout")):
            return f"a row of {name} is {t.shape[-1] * t.itemsize} bytes, no multiple of the 16 it reads at a time"
        if t.stride(-1) != 1 and not t.is_contiguous():
            continue
        past = 0 if isinstance(t, FakeTensor) else t.data_ptr() % 16
        if past:
            return f"{name} begins {past} bytes past a multiple of 16, and it reads 16 bytes at a time"
        for axis in range(t.dim() - 1):
            if t.shape[axis] > 1 and t.stride(axis) * t.itemsize % 16:
                return f"rows of {name} are {t.stride(axis) * t.itemsize} bytes apart, no multiple of the 16 it reads at a time"
    return None


def threads(n: int, each: int) -> int:
    """A block for one row of n elements, about `each` of them a thread: whole warps, a power of two, at most 1024."""
    return min(1024, max(32, power_of_2(cdiv(n, each))))


@dataclass(frozen=True)
class Deal:
    """Rows dealt to threads: `lanes` threads a row with `vecs` vectors of 16 bytes each, `threads` a block, `stages` of its rows waiting."""

    lanes: int
    vecs: int
    threads: int
    stages: int
    per: int  # blocks a multiprocessor

    @property
    def instance(self) -> str:
        return f"{self.lanes}, {self.vecs}, {self.threads}, {self.stages}"

    @property
    def rows(self) -> int:
        return self.threads // self.lanes

    def shared(self, tensors: int = 1) -> int:
        return 16 * self.stages * self.vecs * self.threads * tensors

    def blocks(self, x: Tensor, m: int) -> int:
        """The grid: what persists, or a block to each group of rows where those are fewer. Simulated: 2, so that every block loops."""
        return min(cdiv(m, self.rows), resident(x, self.per))


def deal(x: Tensor, config: Mapping[str, Any], tensors: int = 1, most: int = 8, widest: int = 1024) -> Deal:
    """`config` says how many vectors a thread has at best, threads a block at least, stages and blocks a multiprocessor. A row so wide
    that `widest` threads must have more gets more; stages that shared memory has no room for are left out."""
    vectors = cdiv(x.shape[-1] * x.itemsize, 16)
    lanes = min(widest, max(8, power_of_2(cdiv(vectors, min(config["vecs"], most)))))
    vecs = max(1, cdiv(vectors, lanes))
    block = lanes if lanes > 32 else max(config["threads"], 32)
    stages = max(1, min(config["stages"], PARK // (16 * vecs * block * tensors)))
    return Deal(lanes, vecs, block, stages, config["per"])


def clustered(x: Tensor, m: int, config: Mapping[str, Any], tensors: int = 1, widest: int = 1024) -> tuple[str, int, int, int]:
    """What an instance has after T, and the grid, block and shared memory of its launch. A row too wide for the cluster gets a larger one."""
    vectors = cdiv(x.shape[-1] * x.itemsize, 16)
    cluster = config["cluster"]
    while cluster < 8 and cdiv(vectors, cluster) > widest * config["vecs"]:
        cluster *= 2
    block = min(widest, max(128, power_of_2(cdiv(vectors, cluster * config["vecs"]))))
    vecs = max(1, cdiv(vectors, cluster * block))
    stages = max(1, min(config["stages"], PARK // (16 * vecs * block * tensors)))
    blocks = min(m, max(1, resident(x, config["per"]) // cluster)) * cluster
    return f"{cluster}, {vecs}, {block}, {stages}", blocks, block, 16 * vecs * block * stages * tensors


def no_clusters(x: Tensor) -> str | None:
    """Why this device has no clusters of blocks for these rows, or None."""
    if x.is_cuda and torch.cuda.is_available() and torch.cuda.get_device_capability(x.device) < (9, 0):
        return "clusters of blocks need sm_90 or later, this device is sm_{}{}".format(*torch.cuda.get_device_capability(x.device))
    if x.device.type == "cpu" and x.shape[-1] * x.itemsize > ALONE:
        return f"a row of {x.shape[-1] * x.itemsize} bytes takes the simulator long, it is given rows of up to {ALONE}"
    return None


def long_sums(x: Tensor, most: int) -> str | None:
    """Why a rung whose threads add a row's terms one after another leaves this row to others, or None."""
    n = x.shape[-1]
    return None if n <= most else f"N={n}: each thread adds its terms one after another, and beyond {most} columns their rounding shows"


def wider_than(x: Tensor, most: int) -> str | None:
    """Why 1024 threads with `most` vectors each do not hold a row, or None."""
    longest = 1024 * most * 16 // x.itemsize
    return None if x.shape[-1] <= longest else f"N={x.shape[-1]} is longer than the {longest} columns that 1024 threads hold"


def any_row(call: Call) -> str | None:
    return off_gpu(row(call)) or too_long(row(call))


def even(call: Call) -> str | None:
    return any_row(call) or uneven(call)


def upto(most: int) -> Refuse:
    """Rows of whole vectors of 16 bytes, `most` of them a thread."""
    return lambda call: even(call) or wider_than(row(call), most)


def clusters(most: int) -> Refuse:
    def refuse(call: Call) -> str | None:
        x = row(call)
        longest = 8 * 1024 * most * 16 // x.itemsize
        if x.shape[-1] > longest:
            return any_row(call) or f"N={x.shape[-1]} is longer than the {longest} columns that 8 blocks of 1024 threads hold"
        return even(call) or no_clusters(x)

    return refuse


def alone(call: Call) -> str | None:
    """Why a block does sooner than a cluster, or None."""
    size = row(call).shape[-1] * row(call).itemsize * (2 if "dout" in call else 1)
    return f"a row of {size} bytes fits one block with another beside it" if size < 1 << 16 else None
