"""The gate. A kernel passes a case when its result is right by a measure that would have refused the negative controls, it wrote all
of its output and none of its input, and it did the same twice."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rooftile.core import replay
from rooftile.core.kernel import OPS, Config, Kernel, Op, too_large
from rooftile.core.record import Status
from rooftile.core.spec import Case, OpSpec
from rooftile.cuda.simulator import Found
from rooftile.workbench import inputs
from rooftile.workbench.gauge import Gauge, unit

REPEATS, PATIENCE = 250, 5.0  # runs of a call that is made many times, or as many as fit into so many seconds: first rungs are slow
ROUND = 10  # of them are heard of together: who waits for each gets few done where others share the GPU


@dataclass(frozen=True)
class Verdict:
    op: str
    kernel: str
    case: str
    variant: str  # the input family or layout
    status: str
    message: str = ""
    errors: dict[str, float] = field(default_factory=dict)  # by output: share of the allowed error


@dataclass(frozen=True)
class Point:
    """One verdict to be had."""

    op: Op
    kernel: Kernel
    case: Case
    variant: str = "normal"


def grid(ops: list[Op], kernel: str | None = None, use: str = "check", device: str = "cpu") -> list[Point]:
    """Operator x kernel x case, and for the smoke cases every input family and layout. A GPU has no memory that is promised and not taken, and nobody else
    the time for what is repeated, nor blocks that come in another order."""
    points = []
    for op in ops:
        spec = op.spec
        if not any(use in c.use for c in spec.cases):
            raise ValueError(f"{spec.name}: none of its {len(spec.cases)} cases is for {use!r}, so that nothing would be judged here")
        for k in op.kernels:
            if kernel is not None and k.name != kernel:
                continue
            points += [Point(op, k, c) for c in spec.cases if use in c.use]
            smoke = [c for c in spec.cases if "smoke" in c.use]
            laid_out = [v for v in inputs.layouts(spec) if device != "cuda" or v != inputs.FAR]
            points += [Point(op, k, c, v) for c in smoke for v in [*inputs.families(spec)[1:], *laid_out]]
            if device == "cuda":
                points += [Point(op, k, c, inputs.REPEATED) for c in [*smoke, *(c for c in _large(spec) if c not in smoke)]]
    return points


def _large(spec: OpSpec) -> list[Case]:
    """Whose blocks are so many that they come in another order each time, but for those that are there for their size. Lists of tensors count as none."""
    forward = spec.forward or spec

    def elements(case: Case) -> int:
        dims = forward.letters(case)
        return max((math.prod(a.shape(dims)) for a in forward.given(case).values() if not a.many), default=0)

    return [c for c in spec.cases if "check" in c.use and not any(a.many for a in forward.args.values()) and 2**18 <= elements(c) < 2**28]


def twin(p: Point) -> bool:
    """Whether bfloat16 has the same case: float16 says little more of a kernel then, and on a CPU that is left to the GPU."""
    alike = ((c.dims, c.params, c.dtype) for c in p.op.spec.cases if set(c.use) >= set(p.case.use))
    return p.case.dtype == torch.float16 and (p.case.dims, p.case.params, torch.bfloat16) in alike


def with_gradients(ops: list[Op]) -> list[Op]:
    return [o for op in ops for o in (op, op.backward) if o is not None]


def all_ops() -> list[Op]:
    return [op for op in OPS.values() if op.spec.forward is None]


class Problem:
    """Inputs of one case with the truth, PyTorch's own result and the measure between them; shared by the kernels it is put to."""

    def __init__(self, spec: OpSpec, case: Case, variant: str, device: str, seed: int = 0):
        self.spec, self.case, self.variant = spec, case, variant
        family = variant if variant in inputs.FAMILIES else "normal"
        change = inputs.vary(spec, family)
        self.call = self.plain = spec.draw(case, seed, device, change)
        if variant not in (family, inputs.REPEATED):
            self.call = inputs.lay_out(spec, self.plain, variant)
        self.truth = outcome(spec, spec.reference, self.call if spec.exact else _upcast(self.call))
        draws = 0 if spec.exact else 3
        noisy = [outcome(spec, spec.reference, _upcast(self.call, noise=2 * unit(case.dtype), seed=s)) for s in range(draws)]
        own = self.truth if spec.exact else self._own(seed, device, change, family)
        for (name, r), t, w, (shape, dtype) in zip(spec.returns.items(), self.truth, own, spec.results(self.call)):
            if (tuple(t.shape), w.dtype) != (shape, dtype):
                raise ValueError(f"the reference gives {name} as {w.dtype} {list(t.shape)}, declared [{r.dims}] is {dtype} {list(shape)}")
        sizes = (
            float(torch.nan_to_num(t.double(), 0, 0, 0).abs().max()) for t in _tensors(self.call) if t.is_floating_point() and t.numel()
        )
        scale = max(sizes, default=0.0) or 1.0
        exact = spec.exact or family == "integers"
        noise = [list(n) for n in zip(*noisy)] or [[] for _ in self.truth]
        self.gauges = [Gauge(t, w, n, scale, spec.tolerance, exact) for t, w, n in zip(self.truth, own, noise)]
        self.names = [*spec.returns, *(n for n, a in spec.args.items() if a.mutated and _there(self.call[n]))]

    def _own(self, seed: int, device: str, change: inputs.Vary, family: str) -> list[Tensor]:
        """PyTorch's operator in the working dtype: its outputs; what it does not return comes from the reference."""
        spec = self.spec
        results = outcome(spec, spec.reference, self.call)
        peer = (spec.forward or spec).peer
        if peer is None or any(a.mutated for a in spec.args.values()) or any(t.numel() == 0 for t in _tensors(self.call)):
            return results  # PyTorch's own operators are not all defined on nothing
        call = (spec.forward or spec).draw(self.case, seed, device, change)  # dense: strange strides may send PyTorch another way
        if spec.forward is None:
            made = _tuple(peer(**call))
            return [*(t.to(r.dtype) for t, r in zip(made, results)), *results[len(made) :]]
        return peer_gradients(spec, call, self.call) or results

    @functools.cached_property
    def vacuous(self) -> str:
        """A control this problem would let pass; a problem that cannot refuse it proves nothing."""
        for name, gauge in zip(self.names, self.gauges):
            for control, wrong in gauge.controls().items():
                if gauge.passes(wrong):
                    return f"the case is vacuous: for {name} the wrong answer '{control}' passes"
        return ""

    @functools.cached_property
    def apart(self) -> dict[str, dict[str, Any]]:
        """The same values with one argument in this layout and the others dense, by its name: what a kernel refuses of one hides what it makes of another."""
        if self.variant not in inputs.LAYOUTS:
            return {}
        moved = [n for n in self.call if self.call[n] is not self.plain[n] and _there(self.call[n])]
        return {n: {**self.plain, n: self.call[n]} for n in moved} if len(moved) > 1 else {}

    def judge(self, kernel: Kernel) -> Verdict:
        why = kernel.objection(self.call)
        if why is None:
            return self._judged(kernel, self.call)
        for name, call in self.apart.items():
            if kernel.objection(call) is None:
                verdict = self._judged(kernel, call)
                if verdict.status != Status.PASSED:
                    return replace(verdict, message=f"{name} alone {self.variant}: {verdict.message}")
        return Verdict(self.spec.name, kernel.name, self.case.id, self.variant, Status.REFUSED, why)

    def _judged(self, kernel: Kernel, call: dict[str, Any]) -> Verdict:
        """Of the config that its heuristic names or, where a block of this device has too little, of the first that fits."""
        where, why = (self.spec.name, kernel.name, self.case.id, self.variant), ""
        for config in (kernel.heuristic(call), *kernel.configs):
            try:
                message, errors = self._faults(kernel, config, call)
            except torch.AcceleratorError:
                raise
            except tuple(too_large) as error:
                why = why or str(error)
                continue
            except Found as error:
                return Verdict(*where, Status.FAILED, str(error))
            except Exception as error:  # a kernel may die in any way; the verdict says how, the other verdicts go on
                first = (str(error).splitlines() or [""])[0]
                return Verdict(*where, Status.ERROR, f"{type(error).__name__}: {first}")
            return Verdict(*where, Status.FAILED if message else Status.PASSED, message, errors)
        return Verdict(*where, Status.REFUSED, why)

    def _faults(self, kernel: Kernel, config: Config, call: dict[str, Any]) -> tuple[str, dict[str, float]]:
        if self.variant == "normal" and self.vacuous:  # a family may saturate an operator (softmax of huge rows has no gradient left)
            return self.vacuous, {}
        run, on_gpu = kernel.bound(config), next(_tensors(call)).is_cuda
        before = {n: _bytes(v) for n, v in call.items() if not (n in self.spec.args and self.spec.args[n].mutated)}
        with poisoned():
            first = outcome(self.spec, run, call)
            # what one run leaves to the next, and what is left out, lie beside what families and layouts change: on a CPU those are run once
            whole = self.variant == "normal" or on_gpu
            lean = kernel.lean and whole
            second = outcome(self.spec, run, call) if on_gpu or (whole and not lean) else first  # there the lean run is the second
            replayed = self._replayed(run, call)
            bare = outcome(self.spec, kernel.bound(config, save=False), call) if lean else first
        changed = [n for n, b in before.items() if b != _bytes(call[n])]
        if changed:
            return f"it changed its input {', '.join(changed)}", {}
        # of PyTorch's own on a GPU nobody has promised: cumsum over a long row adds in the order in which blocks come
        repeats = not kernel.varies and not (kernel.name == "reference" and on_gpu)
        errors, faults = {}, []
        if len(first) != len(self.gauges):
            return f"{len(first)} outputs, expected {len(self.gauges)}", {}
        later = _memory(second if second is not first else bare if bare is not first else [])
        given = {place: n for n, v in call.items() for place in _memory(_tensors({n: v}))}
        for i, (name, gauge, out, again) in enumerate(zip(self.names, self.gauges, first, second)):
            reading = gauge.read(out)
            errors[name] = max(reading.worst, reading.aggregate)
            if not reading.passed:
                faults.append(f"{name}: {reading.message}")
            elif name in self.spec.returns and not out.is_contiguous():
                faults.append(f"{name}: strides {out.stride()} for shape {list(out.shape)}, outputs are contiguous")
            elif name in call and isinstance(call[name], Tensor) and _bytes(inputs.beside(out)) != _bytes(inputs.beside(call[name])):
                faults.append(f"{name}: it wrote beside what it was given to write in")
            elif _memory([out]) & given.keys():
                faults.append(f"{name}: it lies in the memory of the input {given[out.untyped_storage().data_ptr()]}")
            elif _memory([out]) & later:
                faults.append(f"{name}: a second call wrote over what the first one returned")
            elif repeats and _bytes(out) != _bytes(again):
                faults.append(f"{name}: two runs on the same inputs differ")
            elif repeats and replayed and _bytes(out) != _bytes(replayed[i]):
                faults.append(f"{name}: the replay of the recorded launcher differs")
            elif lean and name in self.spec.returns and self.spec.returns[name].saved and bare[i] is not None:
                faults.append(f"{name}: made where nothing is to be saved for a gradient")
            elif lean and repeats and bare[i] is not None and _bytes(out) != _bytes(bare[i]):
                faults.append(f"{name}: it differs where nothing is saved for a gradient")
        if self.variant == inputs.REPEATED and not faults:
            faults += self._drift(run, call, first if repeats else None)
        return "; ".join(faults), errors

    def _drift(self, run: Callable[..., Any], call: dict[str, Any], first: list[Tensor] | None) -> list[str]:
        """Of REPEATS runs the first that is not the same to the last bit; without a `first`, whose sums may come in any order, the first that is not right."""
        if first is None:
            for (number,) in _repeats(1):
                for name, gauge, out in zip(self.names, self.gauges, outcome(self.spec, run, call)):
                    if not gauge.passes(out):
                        return [f"{name}: run {number} of {REPEATS} is wrong: {gauge.read(out).message}"]
            return []
        for numbers in _repeats(ROUND):
            found = torch.stack([_different(outcome(self.spec, run, call), first) for _ in numbers])
            for number, different in zip(numbers, found.tolist()):
                for name in itertools.compress(self.names, different):
                    return [f"{name}: run {number} of {REPEATS} on the same inputs differs from the first"]
        return []

    def _replayed(self, run: Callable[..., Any], call: dict[str, Any]) -> list[Tensor]:
        """What an eager call gets from the third time on, where the launcher can be replayed."""
        where = next(_tensors(call)).device
        if where.type != "cuda":
            return []
        made: list[Any] = []

        def recorded(*args: Any) -> Any:
            with _recordable():
                result, again = replay.record(run, args, where)
            made.append(again)
            return result

        outcome(self.spec, recorded, call)
        return outcome(self.spec, made[0], call) if made[0] is not None else []


def peer_gradients(spec: OpSpec, forward: dict[str, Any], backward: dict[str, Any]) -> list[Tensor] | None:
    """PyTorch's own gradients in the working dtype, for the inputs and the output gradients of this call."""
    assert spec.forward is not None and spec.forward.peer is not None and spec.forward.backward is not None
    gradient = spec.forward.backward
    leaves = {
        n: forward[n].detach().clone().requires_grad_()
        for n in gradient.leaves
        if forward[n] is not None and forward[n].is_floating_point()
    }
    if not leaves:  # integers: PyTorch differentiates none
        return None
    made = _tuple(spec.forward.peer(**{**forward, **leaves}))
    # through the others, as indices, no gradient flows
    out = {f"d{n}": t for n, t in zip(spec.forward.returns, made) if f"d{n}" in backward}
    # PyTorch's attention dies of a misaligned gradient
    dense = [torch.empty_like(t).copy_(backward[n]) for n, t in out.items()]
    grads = dict(zip(leaves, torch.autograd.grad(list(out.values()), list(leaves.values()), dense)))
    absent = forward[gradient.leaves[0]].new_empty(0)
    return [max((grads[n] for n in group if n in grads), key=lambda t: t.itemsize, default=absent) for group in gradient.groups]


def run_points(points: list[Point], device: str, each: Callable[[Verdict], None] = lambda v: None) -> list[Verdict]:
    """Judge the points; kernels that share a case share its problem."""
    verdicts: list[Verdict] = []
    made: tuple[Any, Problem | str] | None = None
    for p in sorted(points, key=lambda p: (list(OPS).index(p.op.spec.name), p.case.id, p.variant)):
        key = (p.op.spec.name, p.case.id, p.variant)
        where = (p.op.spec.name, p.kernel.name, p.case.id, p.variant)
        try:
            if made is None or made[0] != key:
                made = (key, _posed(p, device))
            problem = made[1]
            verdict = Verdict(*where, Status.ERROR, problem) if isinstance(problem, str) else problem.judge(p.kernel)
        except torch.AcceleratorError as error:  # the device is gone for this process: any verdict after this would blame the innocent
            verdicts.append(Verdict(*where, Status.ERROR, f"the device died, nothing after this was judged: {str(error).splitlines()[0]}"))
            break
        verdicts.append(verdict)
        each(verdict)
    return verdicts


def _posed(p: Point, device: str) -> Problem | str:
    try:
        return Problem(p.op.spec, p.case, p.variant, device)
    except torch.AcceleratorError:
        raise
    except Exception as error:  # a problem that cannot be posed is a finding like any other
        return f"the problem cannot be posed: {type(error).__name__}: {error}"


def _repeats(at_once: int) -> Iterator[range]:
    """The numbers of the runs after the first, so many at once, until there are REPEATS or it has taken long enough."""
    end = time.monotonic() + PATIENCE
    for first in range(2, REPEATS + 1, at_once):
        if time.monotonic() > end:
            return
        yield range(first, min(first + at_once, REPEATS + 1))


def _different(made: list[Tensor], first: list[Tensor]) -> Tensor:
    """Of each whether a bit differs, where they lie: nobody waits."""
    return torch.stack([(_bits(a) != _bits(b)).any() for a, b in zip(made, first)])


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize])


before_run: list[Callable[[list[Tensor]], None]] = []  # told of every tensor a run may touch; the interpreter checks bounds by it


def outcome(spec: OpSpec, run: Callable[..., Any], call: dict[str, Any]) -> list[Tensor]:
    """What a run produces: its results, then what it wrote in place, on copies."""
    call = {n: _copy(v) if n in spec.args and spec.args[n].mutated and _there(v) else v for n, v in call.items()}
    for watch in before_run:
        watch(list(_tensors(call)))
    result = run(*call.values())
    results = [] if result is None else list(result) if isinstance(result, (tuple, list)) else [result]
    for n, a in spec.args.items():
        if a.mutated and _there(call[n]):
            results.append(torch.cat([t.reshape(-1) for t in call[n]]) if a.many else call[n])
    return results


def _tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _there(v: Any) -> bool:
    """An optional argument that was given; of a list, one with something in it."""
    return v is not None and not (isinstance(v, (list, tuple)) and not v)


def _copy(v: Any) -> Any:
    return [inputs.as_it_lies(t) for t in v] if isinstance(v, (list, tuple)) else inputs.as_it_lies(v)


def _memory(tensors: Iterable[Tensor | None]) -> set[int]:
    """Where they lie; what has no elements lies nowhere."""
    return {t.untyped_storage().data_ptr() for t in tensors if t is not None and t.numel()}


def _tensors(call: dict[str, Any]) -> Iterator[Tensor]:
    for v in call.values():
        yield from (t for t in (v if isinstance(v, (list, tuple)) else [v]) if isinstance(t, Tensor))


def _upcast(call: dict[str, Any], noise: float = 0.0, seed: int = 0) -> dict[str, Any]:
    """To float64, or float32 where that would not fit; `noise` perturbs relatively, seeded."""
    big = sum(t.numel() for t in _tensors(call)) > 2**28
    seeds = itertools.count(17 + 1000 * seed)  # a stream for each tensor: v and out, of one shape, must not move together

    def up(v: Any) -> Any:
        if isinstance(v, (list, tuple)) and v and isinstance(v[0], Tensor):
            return [up(t) for t in v]
        if not isinstance(v, Tensor) or not v.is_floating_point():
            return v
        wide = v.to(torch.float32 if big else torch.float64, copy=True)
        if noise:
            gen = torch.Generator(device=v.device).manual_seed(next(seeds))
            wide *= 1 + noise * torch.randn(v.shape, generator=gen, device=v.device)
        return wide

    return {n: up(v) for n, v in call.items()}


def _bytes(v: Any) -> Any:
    """Comparable to the last bit, NaN and -0 included."""
    if isinstance(v, Tensor):
        dense = v.detach().contiguous()
        flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)  # of a single element any stride is contiguous
        return flat.cpu().numpy().tobytes() if flat.numel() < 2**24 else (int(flat.sum(dtype=torch.int64)), flat.numel())
    return [_bytes(t) for t in v] if isinstance(v, (list, tuple)) else v


_FACTORIES = [(torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (Tensor, "new_empty")]
_REPLAYED = [(torch._C._dynamo.guards, "_empty_strided_cuda"), (torch._C._dynamo.guards, "_empty_strided_cpu")]
_REAL = {n: getattr(p, n) for p, n in (*_FACTORIES, *_REPLAYED)}


@contextmanager
def _set(places: list[tuple[Any, str]], to: Callable[[str], Any]) -> Iterator[None]:
    before = [getattr(p, n) for p, n in places]
    for place, name in places:
        setattr(place, name, to(name))
    try:
        yield
    finally:
        for (place, name), make in zip(places, before):
            setattr(place, name, make)


@contextmanager
def poisoned() -> Iterator[None]:
    """Fresh memory holds NaN (or the largest integer), so that what is not written shows."""

    def poison(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, **kwargs: Any) -> Tensor:
            t = make(*args, **kwargs)
            if type(t) is Tensor and t.device.type != "meta" and t.numel():  # not what compilation imagines, which holds nothing
                t.fill_(float("nan")) if t.is_floating_point() else t.fill_(True if t.dtype == torch.bool else torch.iinfo(t.dtype).max)
            return t

        return made

    with _set(_FACTORIES + _REPLAYED, lambda name: poison(_REAL[name])):
        yield


@contextmanager
def _recordable() -> Iterator[None]:
    """Inside `poisoned`: the launcher being recorded gets its memory unpoisoned (filling it would count as computing), its replay does not."""
    with _set(_FACTORIES, lambda name: _REAL[name]):
        yield
