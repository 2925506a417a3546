"""Rows that blocks of a cluster share: how many threads, stages and clusters; and of those that leave after a row, how many vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from rooftile.core.kernel import Limits
from rooftile.core.spec import Call
from rooftile.cuda.launch import resident_clusters
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_rows import Refuse, clusters
from rooftile.ops._shared.launch import cdiv, power_of_2, processors, row

MEMORY = 228 * 1024  # bytes of shared memory of a multiprocessor of sm_90
RESERVED = 12 * 1024  # of which a block has as many at most beside what it asks for: the system's, four turns of partial sums, barriers
ROOM = MEMORY - RESERVED  # what one block may ask for
ALL = Limits(shared_bytes=227 * 1024)


def evenly(turns: int, fit: int) -> int:
    """How many of the `fit` that persist share so many turns, so that the last one is not a few of them's alone."""
    return cdiv(turns, max(1, cdiv(turns, fit)))


@dataclass(frozen=True)
class Shares:
    """A row shared by `cluster` blocks of `threads` threads with `vecs` vectors of 16 bytes each, which take row after row; `stages` rows wait,
    `per` blocks are wanted a multiprocessor, `shared` is a block's dynamic shared memory."""

    cluster: int
    vecs: int
    threads: int
    stages: int
    per: int
    shared: int

    @property
    def instance(self) -> str:
        return f"{self.cluster}, {self.vecs}, {self.threads}, {self.stages}, {self.per}"

    def blocks(self, x: Tensor, m: int, source: Source, instance: str) -> int:
        """The grid. A cluster beyond those that fit at a time would run after all others, so their number is asked of the driver; then no
        more than share the rows evenly. Simulated: 2, so that every cluster loops."""
        fit = 2 if x.device.type == "cpu" else processors(x) * self.per // self.cluster
        if x.is_cuda:
            fit = resident_clusters(source, instance, x.get_device(), self.threads, self.shared)
        return evenly(m, fit) * self.cluster


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


HELD = Hold(4, 8)  # a row as it came, in 4 registers a vector
LEAST = 2  # stages: a row waits for the other blocks' numbers while the next one is read


def beside_rows(cluster: int, threads: int) -> int:
    """Bytes of shared memory of a block beside what it asks for: 32 of sums for each warp of a row, barriers for each of its own."""
    return min(RESERVED, 2048 + cluster * threads + 8 * threads)


def share(x: Tensor, config: Mapping[str, Any], hold: Hold, tensors: int = 1, beside: int = 0) -> Shares:
    """`config` says how many blocks a row gets at least, vectors a thread, stages and blocks a multiprocessor. tensors: that are read by rows.
    beside: bytes that stay in shared memory for each 16 of a row."""
    vectors, cluster, vecs = cdiv(x.shape[-1] * x.itemsize, 16), config["cluster"], min(config["vecs"], hold.heavy)
    while cluster < 8 and (
        cdiv(vectors, cluster) > hold.threads(vecs) * vecs or cdiv(vectors, cluster) * (LEAST * 16 * tensors + beside) > ROOM
    ):
        cluster *= 2
    if cdiv(vectors, cluster) > hold.threads(vecs) * vecs:
        vecs = hold.light if 1024 * hold.light == hold.most else hold.heavy
    threads = min(hold.threads(vecs), max(64, power_of_2(cdiv(vectors, cluster * vecs))))
    vecs = max(1, cdiv(vectors, cluster * threads))
    row, stay = 16 * vecs * threads * tensors, vecs * threads * beside
    reserved = beside_rows(cluster, threads)
    per = max(1, min(config["per"], hold.threads(vecs) // threads, MEMORY // (reserved + stay + LEAST * row)))
    stages = max(LEAST, min(config["stages"], (MEMORY // per - reserved - stay) // row))
    return Shares(cluster, vecs, threads, stages, per, row * stages + stay)


def too_wide(x: Tensor, hold: Hold) -> str | None:
    """Why 8 blocks do not hold a row, or None."""
    n, longest = x.shape[-1], 8 * hold.most * 16 // x.itemsize
    return None if n <= longest else f"N={n} is longer than the {longest} columns that the registers of 8 blocks hold"


def no_room(x: Tensor, beside: int, tensors: int = 1) -> str | None:
    """Why 8 blocks have no room for two rows of so many tensors and for `beside` bytes that stay for each 16 of one, or None."""
    need = cdiv(x.shape[-1] * x.itemsize, 16 * 8) * (LEAST * 16 * tensors + beside)
    return (
        None
        if need <= ROOM
        else f"two rows of {x.shape[-1]} columns and what stays are {need} bytes for each of 8 blocks, which have {ROOM}"
    )


def stays(x: Tensor, parameter: Tensor | None) -> int:
    """Bytes of a parameter that stays beside each 16 of a row."""
    return 0 if parameter is None else parameter.itemsize * 16 // x.itemsize


def pick_share(call: Call) -> dict[str, int]:
    """Forward, and backward from rows of 128 KB on, 8 blocks a row, two a multiprocessor; shorter rows backward 4, one a multiprocessor. Simulated:
    four blocks a row."""
    if row(call).device.type == "cpu":
        return {"cluster": 4, "vecs": 1, "stages": 2, "per": 1}
    if "dout" not in call:
        return {"cluster": 8, "vecs": 4, "stages": 4, "per": 2}
    return (
        {"cluster": 4, "vecs": 4, "stages": 3, "per": 1}
        if row(call).shape[-1] * row(call).itemsize < 1 << 17
        else {"cluster": 8, "vecs": 4, "stages": 2, "per": 2}
    )


SHARE = tuple(
    {"cluster": c, "vecs": v, "stages": s, "per": p}
    for c, v, s, p in (
        (8, 2, 4, 1), (8, 2, 6, 1), (8, 2, 3, 2), (8, 4, 2, 2), (8, 4, 6, 1), (8, 1, 6, 1), (4, 4, 3, 1), (4, 2, 3, 1), (4, 4, 2, 2), (2, 2, 6, 1), (2, 2, 3, 2),
        (2, 4, 3, 1), (1, 2, 3, 1), (8, 4, 4, 2), (8, 4, 3, 3), (4, 4, 4, 1), (8, 2, 8, 1), (4, 4, 3, 2), (8, 8, 2, 3), (8, 8, 4, 2), (8, 8, 3, 4), (4, 8, 4, 1), (4, 8, 3, 2),
    )
)  # fmt: skip


class Visit(NamedTuple):
    """Clusters that leave: `cluster` blocks of `threads` threads with `vecs` vectors of 16 bytes each, `per` blocks a multiprocessor."""

    cluster: int
    vecs: int
    threads: int
    per: int


def visit(x: Tensor, config: Mapping[str, Any], registers: Callable[[int], int], widest: int) -> Visit:
    """Rows dealt to clusters that leave. `registers`: of a thread, for so many vectors. `config` says how many blocks a row gets at least, of up to
    `widest` threads, vectors a thread, blocks a multiprocessor at most."""
    vectors, cluster, vecs = cdiv(x.shape[-1] * x.itemsize, 16), config["cluster"], config["vecs"]
    while cluster < 8 and cdiv(vectors, cluster) > widest * vecs:
        cluster *= 2
    block = min(widest, max(64, power_of_2(cdiv(vectors, cluster * vecs))))
    vecs = max(1, cdiv(vectors, cluster * block))
    per = max(1, min(config["per"], (1 << 16) // (registers(vecs) * block)))
    return Visit(cluster, vecs, block, per)


def visits(most: int) -> Refuse:
    """Rows that the registers of 8 blocks hold, `most` vectors of 16 bytes a block."""

    def refuse(call: Call) -> str | None:
        x = row(call)
        longest = 8 * most * 16 // x.itemsize
        if x.shape[-1] > longest:
            return f"N={x.shape[-1]} is longer than the {longest} columns that 8 blocks hold"
        return clusters(8)(call)

    return refuse


def pick_visit(call: Call) -> dict[str, int]:
    """Parts of 32 KB, three blocks of 256 threads a multiprocessor: 96 KB asked for at once, four times what the latency of memory wants, and
    while the numbers of one row travel the others load and write. Of two tensors as much in two blocks of 512 threads. Simulated: four blocks
    a row."""
    if not row(call).is_cuda:
        return {"cluster": 4, "vecs": 2, "per": 1}
    cluster = max(1, min(8, power_of_2(cdiv(row(call).shape[-1] * row(call).itemsize, 1 << 15))))
    return {"cluster": cluster, "vecs": 4, "per": 2} if "dout" in call else {"cluster": cluster, "vecs": 8, "per": 3}


VISIT = tuple(
    {"cluster": c, "vecs": v, "per": p} for c, v, p in ((8, 8, 3), (8, 8, 2), (4, 8, 3), (4, 8, 2), (8, 16, 3), (2, 8, 3), (8, 4, 2))
)
VISIT_BACKWARD = tuple(
    {"cluster": c, "vecs": v, "per": p} for c, v, p in ((8, 4, 2), (8, 4, 1), (8, 8, 2), (8, 8, 3), (4, 4, 2), (8, 2, 1), (2, 4, 2))
)
