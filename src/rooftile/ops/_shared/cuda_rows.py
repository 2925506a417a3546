"""What the CUDA launchers over rows share: who may read 16 bytes at a time, how a row is dealt to threads, how many blocks persist."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from rooftile.core.spec import Call
from rooftile.cuda.launch import CTYPE, launch, resident_clusters
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, power_of_2

ADD_ROWS = Source.beside(__file__, "add_rows.cu")
LONGEST = 2**31 - 2**16  # columns: an index of one is an int, with room for a block's stride
ALONE = 16 * 1024  # bytes of a row that a cluster of one takes
RESERVED = 6 * 1024  # bytes of shared memory that a block has beside what it asks for: the system's, partial sums, barriers
ROOM = 228 * 1024 - RESERVED  # what one block may ask for on sm_90, so that it has them
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


@functools.lru_cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


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
        groups = cdiv(m, self.rows)
        return min(groups, self.per * processors(x.device) if x.is_cuda else 2 if x.device.type == "cpu" else 132 * self.per)


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
    resident = config["per"] * processors(x.device) if x.is_cuda else 2 if x.device.type == "cpu" else 132 * config["per"]
    blocks = min(m, max(1, resident // cluster)) * cluster
    return f"{cluster}, {vecs}, {block}, {stages}", blocks, block, 16 * vecs * block * stages * tensors


@dataclass(frozen=True)
class Shares:
    """A row shared by `cluster` blocks of `threads` threads with `vecs` vectors of 16 bytes each; `stages` rows wait, `per` blocks are wanted
    a multiprocessor, `shared` is a block's dynamic shared memory. `stay`: as many clusters as fit take row after row, else one takes one."""

    cluster: int
    vecs: int
    threads: int
    stages: int
    per: int
    shared: int
    stay: bool

    @property
    def instance(self) -> str:
        return f"{self.cluster}, {self.vecs}, {self.threads}, {self.stages}, {self.per}"

    def blocks(self, x: Tensor, m: int, source: Source, instance: str) -> int:
        """The grid. A cluster beyond those that fit at a time would run after all others, so their number is asked of the driver; then no
        more than share the rows evenly. Simulated: 2, so that every cluster loops."""
        if not self.stay:
            return m * self.cluster
        fit = 2 if x.device.type == "cpu" else 132 * self.per // self.cluster
        if x.is_cuda:
            fit = resident_clusters(source, instance, x.get_device(), self.threads, self.shared)
        return cdiv(m, max(1, cdiv(m, fit))) * self.cluster


@dataclass(frozen=True)
class Hold:
    """How many vectors of 16 bytes a thread's registers hold of a row in work: `light` of 64 registers, `heavy` of 128. A multiprocessor has
    64 for each of 1024 threads."""

    light: int
    heavy: int

    def threads(self, vecs: int) -> int:
        return 1024 if vecs <= self.light else 512

    @property
    def most(self) -> int:
        """Vectors that a block holds."""
        return max(1024 * self.light, 512 * self.heavy)


def wide_hold(x: Tensor) -> Hold:
    """Of a row whose elements are in 32 bits each."""
    return Hold(4, 8) if x.itemsize == 2 else Hold(8, 8)


def share(x: Tensor, config: Mapping[str, Any], hold: Hold, tensors: int = 1, beside: int = 0) -> Shares:
    """`config` says how many blocks a row gets at least, vectors a thread, stages and blocks a multiprocessor. tensors: that are read by rows.
    beside: bytes that stay in shared memory for each 16 of a row."""
    vectors, cluster, vecs = cdiv(x.shape[-1] * x.itemsize, 16), config["cluster"], min(config["vecs"], hold.heavy)
    while cluster < 8 and (cdiv(vectors, cluster) > hold.threads(vecs) * vecs or cdiv(vectors, cluster) * (16 * tensors + beside) > ROOM):
        cluster *= 2
    if cdiv(vectors, cluster) > hold.threads(vecs) * vecs:
        vecs = hold.light if 1024 * hold.light == hold.most else hold.heavy
    threads = min(hold.threads(vecs), max(64, power_of_2(cdiv(vectors, cluster * vecs))))
    vecs = max(1, cdiv(vectors, cluster * threads))
    per = max(1, min(config["per"], hold.threads(vecs) // threads))
    row, stay = 16 * vecs * threads * tensors, vecs * threads * beside
    stages = max(1, min(config["stages"], ((ROOM + RESERVED) // per - RESERVED - stay) // row))
    return Shares(cluster, vecs, threads, stages, per, row * stages + stay, config.get("stay", True))


def no_clusters(x: Tensor) -> str | None:
    """Why this device has no clusters of blocks for these rows, or None."""
    if x.is_cuda and torch.cuda.is_available() and torch.cuda.get_device_capability(x.device) < (9, 0):
        return "clusters of blocks need sm_90 or later, this device is sm_{}{}".format(*torch.cuda.get_device_capability(x.device))
    return None


def too_wide(x: Tensor, hold: Hold) -> str | None:
    """Why 8 blocks do not hold a row, or None."""
    n, longest = x.shape[-1], 8 * hold.most * 16 // x.itemsize
    return None if n <= longest else f"N={n} is longer than the {longest} columns that the registers of 8 blocks hold"


def no_room(x: Tensor, beside: int, tensors: int = 1) -> str | None:
    """Why 8 blocks have no room for a row of so many tensors and for `beside` bytes that stay for each 16 of it, or None."""
    need = cdiv(x.shape[-1] * x.itemsize, 16 * 8) * (16 * tensors + beside)
    return (
        None if need <= ROOM else f"a row of {x.shape[-1]} columns and what stays are {need} bytes for each of 8 blocks, which have {ROOM}"
    )


def long_sums(x: Tensor, most: int) -> str | None:
    """Why a rung whose threads add a row's terms one after another leaves this row to others, or None."""
    n = x.shape[-1]
    return None if n <= most else f"N={n}: each thread adds its terms one after another, and beyond {most} columns their rounding shows"


def wider_than(x: Tensor, most: int) -> str | None:
    """Why 1024 threads with `most` vectors each do not hold a row, or None."""
    longest = 1024 * most * 16 // x.itemsize
    return None if x.shape[-1] <= longest else f"N={x.shape[-1]} is longer than the {longest} columns that 1024 threads hold"


def add_rows(partial: Tensor, out: Tensor) -> None:
    """out[N] = the sum over the rows of partial [P, N], float32, in one fixed order."""
    p, n = partial.shape
    launch(ADD_ROWS, f"add_rows<{CTYPE[out.dtype]}>", cdiv(n, 32), (32, 32), out, partial, p, n)
