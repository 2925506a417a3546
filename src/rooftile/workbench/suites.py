"""`rooftile suites`: attention asked what the tests of other libraries ask of theirs, by their arguments and bounds; how it was answered is a Record.

A point is one call with its gradient. The truth is float64, by hand; beside it stands the same by hand in the tensors' dtype, as an eager PyTorch has it:
ours may be off by BOUNDS times as much, of the largest element. Points of a kind differ in sizes alone and share what is compiled, which is most of the
time: a process takes a kind at a time, in an order that is drawn once, so that as many as there is time for are a sample of all. A record says which of
that order have been judged, and a later run can go on with the others.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from rooftile.core import device as dev
from rooftile.core.kernel import nearest
from rooftile.core.record import Environment, Record, Status, append, read
from rooftile.ops import attention, scaled_dot_product_attention
from rooftile.ops._shared.philox import kept
from rooftile.ops._shared.seeds import seeded
from rooftile.ops.attention.options_reference import counted
from rooftile.workbench.spread import Unit, spread
from rooftile.workbench.training_records import digest_with_cuda

RESULTS = "out", "dq", "dk", "dv"
BOUNDS = dict(zip(RESULTS, (2.0, 3.0, 3.0, 3.0)))  # FlashAttention's own
DOORS = "rooftile.ops.attention.api", "rooftile.ops.attention.torch_api"
PREFIX, CASE = "suite.", "all"


@dataclass(frozen=True)
class Asked:
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    dtype: torch.dtype
    causal: bool
    scale: float | None = None
    local: bool = False  # a window, drawn
    alibi: bool = False  # a bias that falls with the distance, drawn
    softcap: float = 0.0
    dropout: float = 0.0
    deterministic: bool = False

    @property
    def kind(self) -> Asked:
        return replace(self, batch=0, queries=0, keys=0, scale=None)

    def __str__(self) -> str:
        said = {n: v for n, v in asdict(self).items() if v or n == "causal"}
        return " ".join(f"{n}={str(v).removeprefix('torch.')}" for n, v in said.items())


@functools.cache
def flash() -> list[Asked]:
    """Dao-AILab/flash-attention, tests/test_flash_attn.py, test_flash_attn_output."""
    lengths = (
        (113, 203),
        (128, 217),
        (113, 211),
        (108, 256),
        (256, 512),
        (512, 256),
        (1024, 1024),
        (1023, 1024),
        (1024, 1023),
        (2048, 2048),
    )
    both = (False, True)
    axes = (
        (torch.float16, torch.bfloat16), (None, 1, 2), both, both, both, both, (32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256), lengths,
        ((0.0, 0.0), (0.17, 0.0), (0.0, 50.0)),
    )  # fmt: skip
    return [
        Asked(4, 4 if softcap else 6, kv_heads or (4 if softcap else 6), t, s, d, dtype, causal, None, local, alibi, softcap, dropout, deterministic)
        for dtype, kv_heads, deterministic, alibi, local, causal, d, (t, s), (dropout, softcap) in itertools.product(*axes)
    ]  # fmt: skip


@functools.cache
def pytorch() -> list[Asked]:
    """pytorch/pytorch, test/test_transformers.py, the fused kernels' gradients beside the reference: without dropout, whose mask is each library's own."""
    axes = (
        (1, 8), (4, 8, 64, 143, 256, 512, 1024, 2048), (4, 8, 64, 128, 256, 587, 1024, 2048), (8, 16, 21, 32, 64, 72, 96, 128, 160, 192, 203, 256),
        (False, True), (torch.float16, torch.bfloat16, torch.float32), (False, True),
    )  # fmt: skip
    return [
        Asked(b, 4, 4, t, s, d, dtype, causal, 1 / d if scaled else None) for b, t, s, d, causal, dtype, scaled in itertools.product(*axes)
    ]


def _half_a_unit(dtype: torch.dtype, right: Tensor) -> float:
    """Of the largest element in its last place: to which it is rounded."""
    return torch.finfo(dtype).eps / 2 * float(right.abs().max())


def _by_dtype(dtype: torch.dtype, right: Tensor) -> float:
    """PyTorch's own."""
    return {torch.float16: 1e-3, torch.bfloat16: 1e-3, torch.float32: 1e-5}[dtype]


@dataclass(frozen=True)
class Suite:
    points: Callable[[], list[Asked]]
    draw: Callable[..., Tensor]
    from_the_first: bool  # what is causal is counted from: the first key, or the last
    least: Callable[[torch.dtype, Tensor], float]  # that is allowed beside the truth, however near PyTorch comes


SUITES = {"flash-attention": Suite(flash, torch.randn, False, _half_a_unit), "pytorch": Suite(pytorch, torch.rand, True, _by_dtype)}


def judge(suite: str, point: Asked, number: int, device: str) -> dict[str, Any]:
    """{"status", "message", "apart"}: apart is, by result, how far ours lies off over what it may."""
    of, generator, numbers = SUITES[suite], torch.Generator(device).manual_seed(number), random.Random(number)

    def draw(rows: int, heads: int) -> Tensor:
        return of.draw(point.batch, rows, heads, point.dim, generator=generator, device=device).to(point.dtype)

    q, k, v = draw(point.queries, point.heads), draw(point.keys, point.kv_heads), draw(point.keys, point.kv_heads)
    upstream = draw(point.queries, point.heads)
    window = (numbers.randrange(point.keys), numbers.randrange(point.keys)) if point.local else None
    shift = 0 if of.from_the_first else point.keys - point.queries
    apart = torch.arange(point.keys, device=device) - torch.arange(point.queries, device=device)[:, None] - shift  # of a key from its query
    hidden = torch.zeros_like(apart, dtype=torch.bool)
    if point.causal:
        hidden |= apart > 0
    if window is not None:
        hidden |= (apart < -window[0]) | (apart > window[1])
    bias = None
    if point.alibi:
        slopes = 0.3 * torch.rand(point.batch, point.heads, 1, 1, generator=generator, device=device)
        bias = (-slopes * apart.abs()).to(point.dtype)
    stays = None
    if point.dropout:
        shape = torch.Size((point.batch, point.heads, point.queries, counted(point.keys)))
        stays = kept(shape, seeded(number, q), point.dropout)[..., : point.keys]

    def by_hand(dtype: torch.dtype) -> list[Tensor]:
        """A sequence at a time: its scores in float64 are what takes room."""
        return [torch.stack(x) for x in zip(*(one_by_hand(i, dtype) for i in range(point.batch)))]

    def one_by_hand(i: int, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x[i].to(dtype).requires_grad_() for x in (q, k, v)]
        one, *others = leaves
        keys, values = (x.repeat_interleave(point.heads // point.kv_heads, 1) for x in others)
        scores = torch.einsum("thd,shd->hts", one * (point.scale or 1 / math.sqrt(point.dim)), keys)
        if point.softcap:
            scores = point.softcap * torch.tanh(scores / point.softcap)
        if bias is not None:
            scores = scores + bias[i]
        nothing = hidden.all(-1, keepdim=True)
        weights = scores.masked_fill(hidden & ~nothing, -math.inf).softmax(-1).masked_fill(hidden, 0.0)
        if stays is not None:
            weights = weights * stays[i] / (1 - point.dropout)
        out = torch.einsum("hts,shd->thd", weights, values)
        return [out.detach(), *torch.autograd.grad(out, leaves, upstream[i].to(dtype))]

    def ours() -> list[Tensor]:
        leaves = one, keys, values = [x.detach().requires_grad_() for x in (q, k, v)]
        if of.from_the_first:
            turned = [x.transpose(1, 2) for x in leaves]
            out: Any = scaled_dot_product_attention(turned[0], turned[1], turned[2], is_causal=point.causal, scale=point.scale).transpose(
                1, 2
            )
        else:
            out = attention(one, keys, values, causal=point.causal, scale=point.scale, window=window, softcap=point.softcap, bias=bias,
                            dropout_p=point.dropout, seed=number if point.dropout else None, deterministic=point.deterministic)  # fmt: skip
        return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]

    try:
        made = ours()
    except ValueError as error:
        return {"status": Status.REFUSED, "message": str(error), "apart": {}}
    truth, own = by_hand(torch.float64), by_hand(point.dtype)
    off = {}
    for name, mine, theirs, right in zip(RESULTS, made, own, truth):
        allowed = BOUNDS[name] * _furthest(theirs, right) + of.least(point.dtype, right)
        off[name] = _furthest(mine, right) / allowed if allowed else float(bool(mine.any()))
    wrong = [f"{n} is off by {x:.3g} of what it may" for n, x in off.items() if not x <= 1]
    return {"status": Status.FAILED if wrong else Status.PASSED, "message": "; ".join(wrong), "apart": off}


def _furthest(x: Tensor, right: Tensor) -> float:
    return float((x.double() - right).abs().max())


def _judged(suite: str, numbers: tuple[int, ...], device: str, end: float) -> list[tuple[int, dict[str, Any] | None]]:
    """Those that are begun before `end`; None where there was no room beside the others."""
    points, made = SUITES[suite].points(), list[tuple[int, dict[str, Any] | None]]()
    for n in numbers:
        if time.monotonic() >= end:
            break
        try:
            made.append((n, judge(suite, points[n], n, device)))
        except torch.OutOfMemoryError:
            made.append((n, None))
        if device == "cuda":
            torch.cuda.empty_cache()  # the others' room
    return made


def _kinds(name: str) -> list[tuple[int, ...]]:
    """The numbers of a suite's points, a kind's together, in an order that is drawn once."""
    points, kinds = SUITES[name].points(), defaultdict[Asked, list[int]](list)
    for n in random.Random(0).sample(range(len(points)), len(points)):
        kinds[points[n].kind].append(n)
    return [tuple(numbers) for numbers in kinds.values()]


def _ranges(places: Iterable[int]) -> str:
    """0 1 2 7 as "0-2 7"."""
    runs = itertools.groupby(enumerate(sorted(places)), lambda at: at[1] - at[0])
    ends = ([place for _, place in run] for _, run in runs)
    return " ".join(f"{x[0]}-{x[-1]}" if len(x) > 1 else str(x[0]) for x in ends)


def _in_ranges(said: str) -> set[int]:
    ends = [[int(end) for end in part.split("-")] for part in said.split()]
    return {place for x in ends for place in range(x[0], x[-1] + 1)}


def _heard(units: list[Unit], jobs: int, end: float) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """(suite, number, verdict) of each point that is judged, and then of those for which there was no room."""
    crowded = []
    with contextlib.closing(spread(_judged, units, jobs, end) if jobs != 1 else ((unit, _judged(*unit)) for unit in units)) as heard:
        for (suite, _, device, _), verdicts in heard:
            for number, verdict in verdicts:
                if verdict is None:
                    crowded.append((suite, number, device))
                else:
                    yield suite, number, verdict
    for suite, number, device in crowded:
        yield suite, number, judge(suite, SUITES[suite].points()[number], number, device)


@dataclass
class _Tally:
    """Of a suite, from where an earlier record of it ended."""

    name: str
    earlier: Record | None

    def __post_init__(self) -> None:
        facts = self.earlier.extra if self.earlier else {}
        self.order = [n for kind in _kinds(self.name) for n in kind]
        self.judged = {self.order[place] for place in _in_ranges(facts.get("places", ""))}
        self.counts = Counter({s: facts.get(s.value, 0) for s in (Status.PASSED, Status.FAILED, Status.REFUSED)})
        self.worst = dict(facts.get("apart", dict.fromkeys(RESULTS, 0.0)))
        self.first = self.earlier.message if self.earlier else ""  # that is wrong
        self.begun = len(self.judged)

    def left(self) -> list[tuple[int, ...]]:
        """Kinds, of each the points that have not been judged."""
        kinds = (tuple(n for n in kind if n not in self.judged) for kind in _kinds(self.name))
        return [kind for kind in kinds if kind]

    def take(self, number: int, verdict: dict[str, Any]) -> str:
        """What is wrong with it, or nothing."""
        self.judged.add(number)
        self.counts[verdict["status"]] += 1
        self.worst = {n: max(x, verdict["apart"].get(n, 0.0)) for n, x in self.worst.items()}
        if verdict["status"] != Status.FAILED:
            return ""
        said = f"{SUITES[self.name].points()[number]}: {verdict['message']}"
        self.first = self.first or said
        return said

    def record(self, digest: str, environment: dict[str, Any]) -> Record:
        facts: dict[str, Any] = {"points": len(self.order), "judged": len(self.judged), "apart": self.worst}
        facts |= {s.value: self.counts[s] for s in (Status.PASSED, Status.FAILED, Status.REFUSED)}
        facts["places"] = _ranges(place for place, n in enumerate(self.order) if n in self.judged)
        status = next((s for s in (Status.FAILED, Status.PASSED) if self.counts[s]), Status.REFUSED)
        return Record(PREFIX + self.name, "rooftile", CASE, status, method="beside float64 and PyTorch by hand", message=self.first, digest=digest,
                      run=uuid.uuid4().hex[:10], extra=facts, environment=environment)  # fmt: skip


def _earlier(file: Path, digest: str, environment: dict[str, Any]) -> Record | None:
    """The last record of what is asked here: of the same sources by the same compilers, which says what has been judged."""
    alike = [r for r in read(file) if r.digest == digest and "places" in r.extra]
    return next((r for r in reversed(alike) if all(r.environment.get(n) == environment.get(n) for n in ("torch", "triton"))), None)


def run(
    names: list[str], device: str, jobs: int, within: float, progress: Console | None, folder: Path | None, lacking: Path | None = None
) -> list[Record]:
    """All points of these suites, or those that are begun `within` seconds, of one suite as of another: in turn a kind of each. Every point that is wrong is
    told as it is heard of; a record tells the first. A suite of which no point was judged has no record. `lacking`: only points that no record in this folder
    says have been judged; what it says of the others is added to."""
    names = [nearest(n, list(SUITES), "suite") for n in names]
    mine, slug, environment = suite_digest(), dev.slug(torch.device(device)), dict(vars(Environment.here()))
    file = f"{slug}/{PREFIX}{{}}.jsonl"
    tallies = {n: _Tally(n, _earlier(lacking / file.format(n), mine, environment) if lacking else None) for n in names}
    end = time.monotonic() + within
    turns = itertools.chain.from_iterable(
        itertools.zip_longest(*([(n, kind, device, end) for kind in t.left()] for n, t in tallies.items()))
    )
    for name, number, verdict in _heard([unit for unit in turns if unit is not None], jobs, end):
        said = tallies[name].take(number, verdict)
        if said and progress is not None:
            progress.print(said, style="red", highlight=False)
    made = []
    for name, tally in tallies.items():
        new = len(tally.judged) - tally.begun
        if progress is not None:
            told = f", {new} of them now" if tally.begun else ""
            progress.print(f"{name}: {len(tally.judged)} of {len(tally.order)} points judged{told}", style="dim")
        made.append(tally.record(mine, environment) if new or tally.earlier is None else tally.earlier)
        if folder is not None and new:
            append(folder / file.format(name), made[-1:])
    return made


def suite_digest() -> str:
    """Of both doors and all that they come to."""
    return digest_with_cuda(DOORS, ("rooftile.ops.",))
