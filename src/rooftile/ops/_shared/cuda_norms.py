"""What the CUDA launchers of norms share: who is taken, how rows are dealt, and what may be tried for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rooftile.core.kernel import Kernel, Limits
from rooftile.core.spec import Call
from rooftile.cuda.launch import CTYPE
from rooftile.cuda.source import Source
from rooftile.ops._shared import cuda_rows
from rooftile.ops._shared.cuda_rows import ALONE, Refuse, clustered, deal, long_sums, threads
from rooftile.ops._shared.cuda_shares import (
    ALL,
    HELD,
    MEMORY,
    ROOM,
    SHARE,
    Hold,
    Shares,
    beside_rows,
    evenly,
    no_room,
    pick_share,
    share,
    stays,
    too_wide,
    visit,
    visits,
)
from rooftile.ops._shared.few_rows import for_many
from rooftile.ops._shared.launch import cdiv, power_of_2, row
from rooftile.ops._shared.norms import dense, no_columns

Config = Mapping[str, Any] | None  # of a rung that has none, None
MANY = 1 << 24  # bytes of rows: half of what the registers of 132 multiprocessors hold; fewer were not measured
ELSEWHERE = Limits(spill_bytes_elsewhere=256)  # configs and bounds on threads are set for sm_90; other compilers want a few registers more


class Shape(NamedTuple):
    """A launch over M rows: what its instance has after the types, grid and block; M where a block has not just one row; shared memory in
    bytes; and how many rows of partial sums a backward writes for each parameter. `parameters` of what makes one are those that may stay."""

    instance: str
    grid: int
    block: int | tuple[int, int]
    rows: tuple[int, ...] = ()
    shared: int = 0
    partials: int = 0
    shares: Shares | None = None

    def placed(self, x: Tensor, m: int, source: Source, instance: str) -> Shape:
        """The same with a grid, where the driver alone knows how many clusters fit."""
        if self.shares is None:
            return self
        blocks = self.shares.blocks(x, m, source, instance)
        return self._replace(grid=blocks, partials=blocks // self.shares.cluster)


def naive(x: Tensor, m: int, n: int, config: Config, *parameters: Tensor | None) -> Shape:
    return Shape("", m, 256)


def warp(x: Tensor, m: int, n: int, config: Config, *parameters: Tensor | None) -> Shape:
    return Shape("", m, threads(n, 16))


def vector(x: Tensor, m: int, n: int, config: Config, *parameters: Tensor | None) -> Shape:
    return Shape("", m, threads(n * x.itemsize, 64))


def register_row(x: Tensor, m: int, n: int, config: Config, *parameters: Tensor | None) -> Shape:
    vectors = n * x.itemsize // 16
    block = threads(vectors, config["vecs"])
    return Shape(f", {cdiv(vectors, block)}, {block}", m, block)


def short_rows(x: Tensor, m: int, n: int, config: Config, *parameters: Tensor | None) -> Shape:
    vectors = n * x.itemsize // 16
    lanes = min(32, max(8, power_of_2(cdiv(vectors, config["vecs"]))))
    per, vecs = config["threads"] // lanes, cdiv(vectors, lanes)
    each = max(1, min(config["each"], 16 // max(1, vecs)))  # a thread's vectors of all its rows: 64 registers
    asked = said(
        config["ahead"] and vecs * (1 if x.itemsize == 2 else each) <= 8 and vecs <= 4
    )  # two float32 parameters are 16 registers a vector
    return Shape(f", {vecs}, {lanes}, {per}, {each}, {asked}", cdiv(m, per * each), (lanes, per), (m,))


def pipeline(
    x: Tensor, m: int, n: int, config: Config, *parameters: Tensor | None, tensors: int = 1, most: int = 8, widest: int = 1024
) -> Shape:
    d = deal(x, config, tensors, most, widest)
    blocks = d.blocks(x, m)
    if m and d.rows > 1:  # a turn of a single row is short, and a multiprocessor left idle for it 1 of 132
        blocks = evenly(cdiv(m, d.rows), blocks)
    return Shape(f", {d.instance}", blocks, d.threads, (m,), d.shared(tensors), blocks)


def cluster(x: Tensor, m: int, n: int, config: Config, *parameters: Tensor | None, tensors: int = 1, widest: int = 1024) -> Shape:
    instance, blocks, block, shared = clustered(x, m, config, tensors, widest)
    return Shape(f", {instance}", blocks, block, (m,), shared, blocks // int(instance.split(",")[0]))


def exchange(x: Tensor, m: int, n: int, config: Config, *parameters: Tensor | None, tensors: int = 1, hold: Hold | None = None) -> Shape:
    s = share(x, config, hold or HELD, tensors, sum(stays(x, p) for p in parameters))
    return Shape(f", {s.instance}", 0, s.threads, (m,), s.shared, shares=s)


def ahead(x: Tensor, m: int, n: int, config: Config, *parameters: Tensor | None) -> Shape:
    """Two rows a cluster where three times as much has room in a multiprocessor."""
    each = sum(-(-stays(x, p) // 16) for p in parameters)  # registers, by fours, that a vector's parameters take
    # whoever asks for some while others are opened keeps both
    v = visit(x, config, lambda vecs: (32 if config["ahead"] >= vecs else 48) + 4 * config["ahead"] * each, 512)
    part = 16 * v.vecs * v.threads
    count = config["rows"] if 3 * config["rows"] * part <= ROOM else 1
    per = max(1, min(v.per, MEMORY // (count * part + beside_rows(v.cluster, v.threads))))
    instance = f", {v.cluster}, {count}, {v.vecs}, {v.threads}, {min(config['ahead'], v.vecs)}, {per}"
    return Shape(instance, cdiv(m, count) * v.cluster, v.threads, (m,), count * part)


def types(*tensors: Tensor) -> str:
    return ", ".join(CTYPE[t.dtype] for t in tensors)


def said(*flags: bool) -> str:
    return ", ".join("true" if f else "false" for f in flags)


def statistics(x: Tensor, *made: Tensor | None) -> list[Tensor]:
    """As launches take them: for one that is not saved an empty tensor, which lies nowhere, so that the kernel finds a null pointer."""
    nothing = x.new_empty(0, dtype=torch.float32) if None in made else x
    return [nothing if t is None else t for t in made]


def at(parameter: Tensor | None, x: Tensor) -> Tensor:
    """A contiguous parameter, and x to point to where there is none."""
    made = dense(parameter)
    return x if made is None else made


def _with_columns(refuse: Refuse) -> Refuse:
    return lambda call: refuse(call) or no_columns(call)


any_row = _with_columns(cuda_rows.any_row)
even = _with_columns(cuda_rows.even)


def serial(most: int) -> Refuse:
    return lambda call: any_row(call) or long_sums(row(call), most)


def one_column(call: Call) -> str | None:
    """Why one column is left to others, or None."""
    return (
        "N=1: one column has no gradient, and a fused multiply-add would leave its rounding times rstd"
        if row(call).shape[-1] == 1
        else None
    )


def upto(most: int) -> Refuse:
    return _with_columns(cuda_rows.upto(most))


def clusters(most: int) -> Refuse:
    return _with_columns(cuda_rows.clusters(most))


def shared(most: int, hold: Callable[[Tensor], Hold], tensors: int, *parameters: str) -> Refuse:
    """Rows that 8 blocks hold, beside the parameters that stay."""

    def refuse(call: Call) -> str | None:
        x = row(call)
        return clusters(most)(call) or too_wide(x, hold(x)) or no_room(x, sum(stays(x, call.get(p)) for p in parameters), tensors)

    return refuse


def short(call: Call) -> str | None:
    longest, n = 32 * 8 * 16 // row(call).itemsize, row(call).shape[-1]
    return even(call) or (None if n <= longest else f"N={n} is longer than the {longest} columns that a warp holds")


def pick_pipeline(call: Call) -> dict[str, int]:
    """64 KB or more in flight a multiprocessor, three times what the latency of memory asks for: 16 bytes x 4 vectors x 1024 threads. A
    row of more than 32 KB takes 8 vectors a thread, so that two blocks of it fit the registers."""
    size = row(call).shape[-1] * row(call).itemsize
    if size <= 2048:
        return {"vecs": 4, "threads": 128, "stages": 1, "per": 10}
    if size <= 32 * 1024:
        return {"vecs": 4, "threads": 128, "stages": 1, "per": max(2, 1280 // max(32, size // 64))}
    return {"vecs": 8, "threads": 128, "stages": 1, "per": 2 if size <= 64 * 1024 else 1}


def few(call: Call) -> str | None:
    """Why a rung that pays for itself over many rows is not asked, or None."""
    size = row(call).numel() * row(call).itemsize
    return f"{size} bytes of rows are few turns for a device, which this rung wants {MANY} for" if size < MANY else None


def _not_short(call: Call) -> str | None:
    size = row(call).shape[-1] * row(call).itemsize
    return few(call) or (
        f"a row of {size} bytes has more than the {4 * 32 * 16} that a warp holds in 4 vectors a lane" if size > 2048 else None
    )


def turns(call: Call) -> str | None:
    """Why a kernel that keeps rows in registers does sooner backward than one whose rows wait in shared memory, or None. Rows that a block of it does
    not hold come here where no cluster takes them."""
    size = row(call).shape[-1] * row(call).itemsize
    return None if size >= 1 << 15 else few(call)


def _all_of_it(call: Call) -> str | None:
    """Why rows that follow each other do sooner than one in registers, or None."""
    size = row(call).shape[-1] * row(call).itemsize
    return f"a row of {size} bytes takes all registers of a multiprocessor, and nothing arrives behind it" if size > 1 << 16 else None


def _one_block(call: Call) -> str | None:
    """Why a block does sooner than a cluster, or None."""
    size = row(call).shape[-1] * row(call).itemsize
    return f"a row of {size} bytes fits the registers of a block, which waits for no other" if size < 1 << 17 else None


def pick_registers(call: Call) -> dict[str, int]:
    """Beyond 32 KB 8 vectors a thread: of a block of 1024 threads with more than 32 registers there is room for one."""
    return REGISTERS[0] if row(call).shape[-1] * row(call).itemsize <= 1 << 15 else REGISTERS[2]


def pick_short_moments(call: Call) -> dict[str, int]:
    """layernorm: above 768 columns of 16 bits a row a warp, and blocks of two."""
    return SHORT[3] if row(call).shape[-1] * row(call).itemsize <= 1536 else SHORT[-1]


def pick_short_sums(call: Call) -> dict[str, int]:
    """rmsnorm: a sum a row leaves registers for the weight, and up to 768 columns of 16 bits for 4 rows."""
    return SHORT[4] if row(call).shape[-1] * row(call).itemsize <= 1536 else SHORT[1]


def pick_gradients(call: Call) -> dict[str, int]:
    """A column's sums and weight are 96 to 128 registers, so 512 threads a multiprocessor. Rows of 2 KB and less go to a warp each, 8 of a block,
    which adds its warps' sums before it writes them, one block a multiprocessor above 1536 bytes; longer ones have 2 vectors a thread, or 4 where 512 threads must hold more. Two or three
    rows of each tensor wait or arrive: 64 KB a multiprocessor and more from N = 2048 on."""
    size = row(call).shape[-1] * row(call).itemsize
    if size <= 2048:
        return {"vecs": 2 if size <= 1024 else 4, "threads": 256, "stages": 2, "per": 2 if size <= 1536 else 1}
    return {"vecs": 2, "threads": 256, "stages": 3, "per": max(1, 512 // max(64, size // 32))}


def pick_shared(rows_of_32_kb: dict[str, int]) -> Callable[[Call], dict[str, int]]:
    """Backward: rows of more than 16 KB and up to 32 as this norm does best, by how many sums a column its registers hold."""

    def pick(call: Call) -> dict[str, int]:
        x = row(call)
        return rows_of_32_kb if x.is_cuda and 1 << 14 < x.shape[-1] * x.itemsize <= 1 << 15 else pick_share(call)

    return pick


def pick_cluster(call: Call) -> dict[str, int]:
    """Parts of 32 KB, so that two blocks and their parts of the parameters share a multiprocessor, the latter in L1."""
    size = row(call).shape[-1] * row(call).itemsize
    if size <= ALONE:
        return {"cluster": 1, "vecs": 4, "stages": 1, "per": 4}
    return {"cluster": 2 if size <= 1 << 16 else 4 if size <= 1 << 17 else 8, "vecs": 4, "stages": 1, "per": 2}


def pick_cluster_backward(call: Call) -> dict[str, int]:
    """Parts of 64 KB of each tensor at most: one block of 1024 threads with 4 vectors each, and two rows under way where there is room:
    clusters of two leave no multiprocessor idle, those of four 12 of 132, and they meet sooner."""
    size = row(call).shape[-1] * row(call).itemsize
    if size <= ALONE:
        return {"cluster": 1, "vecs": 2, "stages": 2, "per": 1}
    return {"cluster": 2 if size <= 1 << 17 else 4 if size <= 1 << 18 else 8, "vecs": 4, "stages": 2, "per": 1}


def pick_ahead(call: Call) -> dict[str, int]:
    """Parts of 16 KB, as many of them as registers allow: with two parameters, all of which are asked for before the rows have come, five blocks of 128 threads a
    multiprocessor, six where those are twice as wide and half are asked for; four of 256 with one. Simulated: four blocks for two rows."""
    if not row(call).is_cuda:
        return {"cluster": 4, "rows": 2, "vecs": 2, "ahead": 1, "per": 1}
    if call.get("bias") is None:
        return AHEAD[1]
    return AHEAD[0 if call["bias"].itemsize == row(call).itemsize else 2]


AHEAD = tuple(
    {"cluster": c, "rows": r, "vecs": v, "ahead": a, "per": p}
    for c, r, v, a, p in (
        (8, 2, 8, 8, 5),
        (8, 2, 4, 4, 4),
        (8, 2, 8, 4, 6),
        (4, 1, 8, 4, 4),
        (4, 1, 8, 2, 4),
        (2, 1, 8, 2, 2),
        (4, 2, 8, 4, 3),
        (2, 1, 4, 4, 2),
        (1, 2, 4, 4, 3),
        (1, 1, 8, 4, 6),
        (1, 1, 16, 4, 6),
        (1, 1, 4, 4, 4),
        (1, 2, 8, 4, 3),
    )
)
REGISTERS = ({"vecs": 4}, {"vecs": 2}, {"vecs": 8})
SHORT = tuple(
    {"vecs": v, "threads": t, "each": e, "ahead": a}
    for v, t, e, a in (
        (4, 128, 3, 0), (4, 64, 2, 1), (4, 128, 4, 1), (4, 64, 2, 0), (4, 64, 4, 1), (4, 64, 1, 1), (4, 128, 1, 0), (8, 256, 1, 0), (8, 128, 2, 0),
        (4, 64, 1, 0),
    )
)  # fmt: skip
GRADIENTS = tuple(
    {"vecs": v, "threads": 256, "stages": s, "per": p}
    for v, s, p in (
        (4, 2, 2), (4, 2, 1), (4, 3, 1), (4, 1, 2), (1, 2, 1), (1, 3, 1), (1, 2, 2), (2, 2, 1), (2, 2, 2), (2, 3, 1), (2, 3, 2), (2, 2, 4)
    )
)  # fmt: skip
PIPELINE = tuple(
    {"vecs": v, "threads": 128, "stages": s, "per": p}
    for v, s, p in (
        (4, 1, 2), (4, 1, 5), (4, 1, 10), (4, 1, 32), (2, 2, 5), (2, 2, 10), (8, 1, 1), (8, 1, 2), (8, 1, 4), (8, 1, 8), (4, 2, 2), (8, 2, 1)
    )
)  # fmt: skip
CLUSTER = tuple(
    {"cluster": c, "vecs": v, "stages": s, "per": p}
    for c, v, s, p in ((2, 4, 1, 2), (2, 8, 1, 2), (4, 4, 1, 2), (4, 4, 1, 4), (8, 4, 1, 4), (8, 4, 2, 2), (8, 2, 1, 4))
)
CLUSTER_BACKWARD = tuple(
    {"cluster": c, "vecs": v, "stages": s, "per": p}
    for c, v, s, p in ((2, 4, 2, 1), (4, 4, 2, 1), (8, 4, 2, 1), (8, 2, 2, 1), (8, 2, 2, 2), (8, 4, 1, 2))
)


def sources(file: str) -> tuple[Source, ...]:
    """The rungs beside `file`, v1 first."""
    names = ("v1_naive", "v2_warp", "v3_vector", "v4_register_row", "v5_rows", "v6_pipeline", "v7_cluster", "v8_exchange", "v9_ahead")
    return tuple(Source.beside(file, f"{name}.cu") for name in names)


def forward_rungs(
    run: Callable[[Source, Callable[..., Shape]], Callable[..., Any]],
    files: tuple[Source, ...],
    few: Refuse,
    fewest: Refuse,
    limits: Limits,
    pick_short: Callable[[Call], dict[str, int]] | None = None,
) -> tuple[Kernel, ...]:
    """`run(source, shape)` is a rung's launcher; `few` and `fewest` are what the rungs refuse whose threads add a row's terms one by one."""
    v1, v2, v3, v4, v5, v6, v7, v8, v9 = files
    return for_many(
        Kernel("cuda.v9_ahead", run(v9, ahead), "rows in shared memory, parameters asked for ahead, and blocks leave", visits(16 * 512), AHEAD, pick_ahead,
               sources=(v9,), limits=ALL, declines=_one_block, architectures=(90,)),
        Kernel("cuda.v8_exchange", run(v8, exchange), "numbers travel while the row before is written, the parameters stay",
               shared(8, lambda x: HELD, 1, "weight", "bias"), SHARE, pick_share, sources=(v8,), limits=ALL, declines=_one_block, architectures=(90,)),
        Kernel("cuda.v7_cluster", run(v7, cluster), "a cluster of blocks a row", clusters(8), CLUSTER, pick_cluster, sources=(v7,),
               limits=limits, declines=_one_block),
        Kernel("cuda.v6_pipeline", run(v6, pipeline), "row after row a block, the next ones in flight", upto(8), PIPELINE, pick_pipeline,
               sources=(v6,), limits=limits),
        Kernel("cuda.v5_rows", run(v5, short_rows), "several short rows a warp at once, no barrier", short, SHORT, pick_short, sources=(v5,),
               limits=ELSEWHERE, declines=_not_short),
        Kernel("cuda.v4_register_row", run(v4, register_row), "the row in registers: one read", upto(8), REGISTERS, pick_registers,
               sources=(v4,), limits=limits, declines=_all_of_it),
        Kernel("cuda.v3_vector", run(v3, vector), "16 bytes an access", even, sources=(v3,)),
        Kernel("cuda.v2_warp", run(v2, warp), "sums through shuffles", few, sources=(v2,)),
        Kernel("cuda.v1_naive", run(v1, naive), "a block a row, sums halved in shared memory", fewest, sources=(v1,)),
    )  # fmt: skip
