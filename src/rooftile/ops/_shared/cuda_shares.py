"""Rows that blocks of a cluster share and that stay with them, row after row: how many threads, stages and clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rooftile.core.kernel import Limits
from rooftile.core.spec import Call
from rooftile.cuda.launch import resident_clusters
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_rows import row
from rooftile.ops._shared.launch import cdiv, power_of_2

RESERVED = 6 * 1024  # bytes of shared memory that a block has beside what it asks for: the system's, partial sums, barriers
ROOM = 228 * 1024 - RESERVED  # what one block may ask for on sm_90, so that it has them
ALL = Limits(shared_bytes=227 * 1024)


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


def stays(x: Tensor, parameter: Tensor | None) -> int:
    """Bytes of a parameter that stays beside each 16 of a row."""
    return 0 if parameter is None else parameter.itemsize * 16 // x.itemsize


def pick_share(call: Call) -> dict[str, int]:
    """One block a multiprocessor, in which a row is worked on while others are on their way. Simulated: four blocks a row."""
    if row(call).device.type == "cpu":
        return {"cluster": 4, "vecs": 1, "stages": 2, "per": 1}
    return {"cluster": 4 if row(call).shape[-1] * row(call).itemsize <= 1 << 16 else 8, "vecs": 2, "stages": 4, "per": 1}


SHARE = tuple(
    {"cluster": c, "vecs": v, "stages": s, "per": p}
    for c, v, s, p in ((8, 2, 4, 1), (8, 2, 6, 1), (8, 2, 3, 2), (8, 4, 2, 2), (8, 4, 1, 4), (4, 4, 2, 1), (4, 2, 2, 1), (2, 4, 1, 1))
)
