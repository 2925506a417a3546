"""Who can compute an operator, and which one is chosen."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, get_args, get_type_hints

import torch
from torch import Tensor

from rooftile.core import known, places, register, replay, tune
from rooftile.core.bind import device_of, parameter
from rooftile.core.record import digest_of
from rooftile.core.spec import Call, OpSpec

Config = Mapping[str, Any]


def shared_memory(arch: int) -> int:
    """Bytes one block may have on sm_<arch>."""
    return {80: 163, 87: 163, 86: 99, 89: 99, 120: 99, 121: 99}.get(arch, 227) * 1024


ROOM = 163 * 1024  # bytes of a block on sm_80, which every kernel may count on but where it is told


@dataclass(frozen=True)
class Limits:
    """What an ahead-of-time compile may use; CI holds every kernel and config to it."""

    registers: int = 255
    spill_bytes: int = 0
    spill_bytes_elsewhere: int = 0  # on other architectures than sm_90, for which configs are chosen
    shared_bytes: int = ROOM  # sm_90 and sm_100 give 227 KiB

    def broken(self, registers: int, spill_bytes: int, shared_bytes: int, arch: int) -> str:
        """What a compilation for sm_<arch> uses beyond these, as a sentence; empty where it keeps to them. Where a block has less than ROOM another config runs."""
        over = [
            (registers, "registers", self.registers),
            (spill_bytes, "spill bytes", max(self.spill_bytes, self.spill_bytes_elsewhere if arch != 90 else 0)),
            (shared_bytes, "shared bytes", min(self.shared_bytes, max(shared_memory(arch), ROOM))),
        ]
        return "; ".join(f"{used} {what}, the limit is {limit}" for used, what, limit in over if used > limit)


class Sources(Protocol):
    """Files a kernel is compiled from: rooftile.cuda.source.Source."""

    @property
    def files(self) -> tuple[Path, ...]: ...


@dataclass(frozen=True)
class Kernel:
    """One way to compute an operator. `run` has the reference's signature, and takes `config` by name where `configs` is not empty. One that
    can leave out the results which only a gradient reads takes `save` by name too, and gives None for them where it is False."""

    name: str
    run: Callable[..., Any]
    idea: str = ""  # one line: what this rung adds over the one below
    refuse: Callable[[Call], str | None] = lambda call: None  # None, or a sentence why this call is not for this kernel
    configs: tuple[Config, ...] = ()
    pick: Callable[[Call], Config] | None = None  # the heuristic; without one, the first config
    limits: Limits = field(default_factory=Limits)
    architectures: tuple[int, ...] = ()  # compute capabilities it is written for, 90 for Hopper; empty: any
    sources: tuple[Sources, ...] = ()  # what it is compiled from besides its Python module
    varies: str = ""  # why two runs on the same inputs may differ in the last bits; empty: they must not
    declines: Callable[[Call], str | None] = lambda call: None  # like refuse, of a call it could take but a later kernel takes sooner

    @property
    def digest(self) -> str:
        return digest_of(self.run, (path for source in self.sources for path in source.files))

    def objection(self, call: Call) -> str | None:
        """None, or why this kernel cannot take this call on this device."""
        return self._elsewhere(call) or self._said("refuse", call)

    def decline(self, call: Call) -> str | None:
        """None, or why a later kernel takes this call sooner."""
        return self._said("declines", call)

    def _said(self, door: str, call: Call) -> str | None:
        """A truth value would be a refusal to the gate, which asks for None, and none to who chooses."""
        why = getattr(self, door)(call)
        if why is not None and not (isinstance(why, str) and why):
            raise ValueError(f"{door} of {self.name} of {self.run.__module__} answers {why!r}: it must be None or a sentence")
        return why

    def _elsewhere(self, call: Call) -> str | None:
        where = device_of(call.values()) if self.architectures else None
        if where is None or where.type != "cuda" or not torch.cuda.is_available():
            return None
        major, minor = torch.cuda.get_device_capability(where)
        if major * 10 + minor in self.architectures:
            return None
        return f"it is written for sm_{', sm_'.join(map(str, self.architectures))}, this device is sm_{major}{minor}"

    def heuristic(self, call: Call) -> Config:
        if self.pick is not None:
            return self.pick(call)
        return self.configs[0] if self.configs else {}

    @functools.cached_property
    def lean(self) -> bool:
        """Whether it can leave out what only a gradient reads."""
        return "save" in inspect.signature(self.run).parameters

    def bound(self, config: Config, save: bool = True) -> Callable[..., Any]:
        """`run` with its config; `save`: with the results that only a gradient reads, which a kernel may make anyway."""
        said = ({"config": config} if config else {}) | ({} if save or not self.lean else {"save": False})
        return functools.partial(self.run, **said) if said else self.run


@dataclass(frozen=True)
class Choice:
    kernel: Kernel
    config: Config
    refused: tuple[tuple[str, str], ...]  # (kernel, sentence) of everyone who was asked first
    source: str  # tuned | heuristic | forced


class Refused(ValueError):
    """A kernel that was forced cannot take the call."""


class TooLarge(ValueError):
    """A launch asks for more of something, shared memory most of all, than one block has on this device."""


too_large: list[type[Exception]] = [TooLarge]  # what says so; Triton's own is added where Triton is known


OPS: dict[str, Op] = {}
_forced: dict[str, str] = {}


class Op:
    """A spec with its kernels in order of preference, reachable through two doors: a direct one for eager calls and
    `torch.ops.rooftile.<name>` for torch.compile, export, autocast and tensor subclasses. The reference is always last in line."""

    def __init__(self, spec: OpSpec, *kernels: Kernel, backward: tuple[Kernel, ...] = ()):
        self.spec = spec
        self.kernels = (*kernels, Kernel("reference", _contiguous(spec.reference), "plain PyTorch, the definition"))
        names = [k.name for k in self.kernels]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"{spec.name} has {names.count(name)} kernels called {name!r}: verdicts and records tell kernels apart by name"
                )
        self.backward = Op(spec.gradient, *backward) if spec.gradient is not None else None
        self.names = tuple(spec.signature.parameters)
        self.plan = register.Plan(spec) if spec.gradient is not None else None
        self.eager = register.eager(spec)
        self._memo: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._known = known.Known()
        self._warned = False
        self._varies = any(k.varies for k in kernels)
        self._saves = any(r.saved for r in spec.returns.values())
        self._constant = [(i, n) for i, n in enumerate(self.names) if n in spec.constants]
        self._written = [i for i, n in enumerate(self.names) if n in spec.args and spec.args[n].mutated]
        self._apart = list(_apart(spec, self.names))
        self._beside = list(_apart(spec, self.names, alike=False))
        self._lists = [i for i in self._written if spec.args[self.names[i]].many]
        OPS[spec.name] = self
        self.entry = register.second_door(self)

    def __repr__(self) -> str:
        return f"Op({self.spec.name}: {', '.join(k.name for k in self.kernels)})"

    def __call__(self, *args: Any) -> Any:
        """All arguments, in order. The wrapper in the operator's api.py supplies the defaults."""
        if not torch.compiler.is_compiling():
            for call in self._known.calls:
                result = call(*args)
                if result is not known.MISS:
                    return result
        if self._constant and torch.is_grad_enabled():
            self._refuse_gradient(args)
        if register.needs_second_door(args):
            if not (torch.compiler.is_compiling() or torch._C._is_tracing()):  # its schema takes any number for true
                self._check_kinds(dict(zip(self.names, args)))
            try:
                return self.entry(*args)
            except RuntimeError as error:  # also of what the schema does not take, which PyTorch tells in the schema's words
                if not torch.compiler.is_compiling():
                    self.check(dict(zip(self.names, args)))
                    if (door := self._inside(args, error)) not in (None, self.entry):
                        return register.without_autocast(self.spec, door, args)
                    self._refuse_sharded(args, error)
                raise
        if self.plan is not None and torch.is_grad_enabled() and self.plan.wants_grad(args):
            try:
                return self.eager.apply(self, *args)
            except RuntimeError as error:
                door = self._inside(args, error)
                if door is None:
                    raise
            return door(*args)
        result = self.launch(*args, save=not self._saves)
        if self._known.worth_learning():
            self._learn(args)
        return result

    def _inside(self, args: Sequence[Any], error: Exception) -> Callable[..., Any] | None:
        """The door inside torch.func's transforms, or None outside. They end in an error: to look for them at each call would cost each call time."""
        transforms = register.transforms(args)
        if not transforms:
            return None
        if not {"Vmap", "Grad"}.issuperset(transforms):
            raise RuntimeError(
                f"{self.spec.name}: of torch.func's transforms it takes vmap and grad, here are {', '.join(transforms)}"
            ) from error
        lists = any(a.many for a in self.spec.args.values())
        if lists or self._written:
            what = "takes lists of tensors" if lists else "writes in place"
            raise RuntimeError(f"{self.spec.name} {what}, which torch.func's transforms have no rule for: call it outside") from error
        return functools.partial(register.Transformed.apply, self) if "Grad" in transforms else self.entry

    def _refuse_sharded(self, args: Sequence[Any], error: Exception) -> None:
        """PyTorch asks each operator for a rule, or for all tensors to be DTensors, which then ask for the rule."""
        if name := next((n for n, a in zip(self.names, args) if register.sharded(a)), None):
            what = f"{self.spec.name}: {name} is a DTensor, and rooftile's operators have no rule for shards"
            instead = "by torch.distributed.tensor.experimental.local_map, or `to_local()`; or take PyTorch's own operator here"
            raise NotImplementedError(f"{what}: call it on what each rank holds, {instead}") from error

    def _refuse_gradient(self, args: Sequence[Any]) -> None:
        """What has no gradient must not end somebody's graph in silence."""
        for i, name in self._constant:
            value = args[i]
            if any(isinstance(t, Tensor) and register.follows(t) for t in (value if isinstance(value, (list, tuple)) else (value,))):
                raise ValueError(register.without_gradient(self.spec, name))

    def launch(self, *args: Any, save: bool = True) -> Any:
        """Straight to the chosen kernel. The choice is remembered by shapes, strides, alignment, dtypes, devices and parameters. `save`: for all results;
        without it the kernel may leave out those that only a gradient reads."""
        try:
            key = self._key(args, save)
            run = self._memo.get(key)
        except (RuntimeError, TypeError) as error:  # a tensor without memory, as vmap's; a sparse one; what is no tensor and has no hash
            if door := self._inside(args, error):
                return door(*args)
            self.check(dict(zip(self.names, args)))
            raise
        if run is None:
            if register.hollow(args):
                return self.entry(*args)
            if len(self._memo) >= 8192:  # lengths that never repeat must not fill the memory
                self._memo.clear()
            chosen = self._resolve(args, save)
            self._refuse_shared(args, self._beside)
            run = self._remember(key, args, chosen)
        if self._apart or self._lists:
            self._refuse_shared(args, self._apart)
        try:
            result = run(*args)
        except tuple(too_large) as error:
            result = self._launch_smaller(key, args, save, error)
        for i in self._written:  # a kernel writes past autograd: who saved the tensor for a backward shall notice
            if args[i] is not None:
                torch.autograd.graph.increment_version(args[i])
        return result

    def _remember(self, key: tuple[Any, ...], args: Sequence[Any], run: Callable[..., Any]) -> Callable[..., Any]:
        where = device_of(args)
        if where is not None and where.type == "cuda":
            run = replay.Rehearsal(run, where, functools.partial(self._memo.__setitem__, key))
        self._memo[key] = run
        return run

    def _launch_smaller(self, key: tuple[Any, ...], args: Sequence[Any], save: bool, error: Exception) -> Any:
        """By another config, or another kernel: they are chosen for blocks of 163 KiB and more of shared memory, and many a GPU has 99. Who fits is
        remembered. Not where a tensor is written in place: a first launch may have done so before a second was too large."""
        call, without = dict(zip(self.names, args)), list[tuple[str, Config]]()
        choice = self.choose(call)
        while not self._written and choice.source != "forced":
            without.append((choice.kernel.name, choice.config))
            choice = self.choose(call, without)
            run = self._runner(choice, call, save)
            try:
                result = run(*args)
            except tuple(too_large):
                continue
            self._remember(key, args, run)
            return result
        raise error

    def _refuse_shared(self, args: Sequence[Any], pairs: Sequence[tuple[int, int, bool]]) -> None:
        """What else is read or written where a kernel writes would depend on who comes first. Addresses are another matter at each call; those of a table, or
        of lengths, beside what is written are asked for where a call is new: to ask at each would take as long as all else that a known call asks."""
        for (one, a), (other, b) in self._sharing(args, pairs):
            what = f"elements of {one} and {other}, which begin {b.data_ptr() - a.data_ptr()} bytes apart, share a place"
            raise ValueError(f"{self.spec.name}: {what}, and {one} is written in place")

    def _sharing(
        self, args: Sequence[Any], pairs: Sequence[tuple[int, int, bool]]
    ) -> Iterator[tuple[tuple[str, Tensor], tuple[str, Tensor]]]:
        """Two by their names, the first one written."""
        for i, j, read in pairs:
            a, b = args[i], args[j]
            if a is not None and b is not None and places.shared(a, b) and not (read and places.same(a, b)):
                yield (self.names[i], a), (self.names[j], b)
        if self._lists:
            written = [t for i in self._lists for t in replay.named(self.names[i], args[i])]
            others = [t for i, a in enumerate(args) if i not in self._written for t in replay.named(self.names[i], a)]
            if two := places.meeting([t for _, t in written], [t for _, t in others]):
                one, other = ([*written, *others][i] for i in two)
                yield one, other

    def _key(self, args: Sequence[Any], save: bool) -> tuple[Any, ...]:
        return _key(args) + (() if save else (False,)) + ((torch.are_deterministic_algorithms_enabled(),) if self._varies else ())

    def _learn(self, args: Sequence[Any]) -> None:
        """From a call without gradient that went well, once it is clear what runs it."""
        if register.transforms(args):
            return
        run = self._memo.get(self._key(args, not self._saves))
        if run is not None and not isinstance(run, replay.Rehearsal):
            free = torch.are_deterministic_algorithms_enabled() if self._varies else None
            self._known.learn(known.code(args, run, self._written, free, self._apart))

    def _resolve(self, args: Sequence[Any], save: bool) -> Callable[..., Any]:
        call = dict(zip(self.names, args))
        self.check(call)
        return self._runner(self.choose(call), call, save)

    def _runner(self, choice: Choice, call: Call, save: bool) -> Callable[..., Any]:
        where = device_of(call.values())
        if where is not None and where.type == "meta" and choice.kernel is self.kernels[-1]:  # nothing is there to compute with
            return lambda *args: self.spec.empty_returns(dict(zip(self.names, args)))
        slow = choice.kernel is self.kernels[-1] and len(self.kernels) > 1 and choice.source != "forced"
        if slow and where is not None and where.type == "cuda" and not self._warned:
            self._warned = True
            register.warn(f"{self.spec.name} runs its slow reference: " + "; ".join(f"{k} refused: {why}" for k, why in choice.refused))
        run = choice.kernel.bound(choice.config, save)
        negative = [
            n for n, a in call.items() if any(isinstance(t, Tensor) and t.is_neg() for t in (a if isinstance(a, (list, tuple)) else [a]))
        ]
        if not negative:
            return run
        if written := [n for n in negative if n in self.spec.args and self.spec.args[n].mutated]:
            what = f"{written[0]} is a view of numbers that stand in memory with the other sign, as z.conj().imag is"
            raise ValueError(f"{self.spec.name}: {what}: it cannot be written in place")
        return lambda *args: run(*map(_with_their_signs, args))

    def check(self, call: Call) -> None:
        """ValueError where parameters are of other kinds, or tensors do not fit."""
        self._check_kinds(call)
        self.spec.bind(call)

    def _check_kinds(self, call: Call) -> None:
        for name, kinds in self._kinds.items():
            parameter(self.spec.name, name, call[name], *kinds)

    def ask(self, *args: Any) -> None:
        """Of one that writes, before another call does what cannot be taken back: the ValueError that a call would be."""
        call = dict(zip(self.names, args))
        self.check(call)
        if not register.needs_second_door(args):
            self.choose(call)
            self._refuse_shared(args, [*self._apart, *self._beside])

    def takes(self, **parameters: Any) -> None:
        """Asked by a module when it is made: ValueError, as a call says it, where there is no call with these parameters. A module that is made in what
        is compiled leaves it to its call."""
        if not torch.compiler.is_compiling():
            self.check(self._example | parameters)

    @functools.cached_property
    def _example(self) -> dict[str, Any]:
        return self.spec.draw(self.spec.cases[0])

    @functools.cached_property
    def _kinds(self) -> dict[str, tuple[type, ...]]:
        """Of what is no tensor, by the reference's annotations, as the other door's schema holds them."""
        hints = get_type_hints(self.spec.reference)
        return {n: get_args(hints[n]) or (hints[n],) for n in self.names if n not in self.spec.args and n in hints}

    def choose(self, call: Call, without: Sequence[tuple[str, Config]] = ()) -> Choice:
        """`without`: kernels, by name, and configs that were too large for this device."""
        _force_from_environment()
        name = _forced.get(self.spec.name) or _forced.get(self.spec.name.removesuffix("_backward"))
        if name is not None and (name in {k.name for k in self.kernels} or self.spec.name in _forced):
            kernel = self.kernel(name)
            why = kernel.objection(call) or _too_free(kernel)
            if why is not None:
                raise Refused(f"{self.spec.name}: the forced kernel {name} refuses: {why}")
            return Choice(kernel, self.config(kernel, call), (), "forced")
        refused: list[tuple[str, str]] = []
        tuned = tune.lookup(self, call)
        if tuned is not None and (tuned[0].objection(call) or _too_free(tuned[0])) is None and (tuned[0].name, tuned[1]) not in without:
            return Choice(*tuned, (), "tuned")
        # the first of those that only decline: where nobody else takes the call, better than the reference
        able: tuple[Kernel, Config] | None = None
        for kernel in self.kernels[:-1]:
            why = kernel.objection(call) or _too_free(kernel)
            if why is None:
                configs = [c for c in (kernel.heuristic(call), *(kernel.configs if without else ())) if (kernel.name, c) not in without]
                why = kernel.decline(call) if configs else "with each of its configs a block asks for more than this device has"
                if why is None:
                    return Choice(kernel, configs[0], tuple(refused), "heuristic")
                able = able or ((kernel, configs[0]) if configs else None)
            refused.append((kernel.name, why))
        return Choice(*(able or (self.kernels[-1], self.kernels[-1].heuristic(call))), tuple(refused), "heuristic")

    def config(self, kernel: Kernel, call: Call) -> Config:
        """The config this kernel runs the call with: tuned where it has been, else its heuristic."""
        tuned = tune.lookup(self, call, kernel.name)
        return tuned[1] if tuned else kernel.heuristic(call)

    def kernel(self, name: str) -> Kernel:
        return {k.name: k for k in self.kernels}[nearest(name, [k.name for k in self.kernels], f"kernel of {self.spec.name}")]

    @property
    def was_launched(self) -> bool:
        """Since the last `forget`."""
        return bool(self._memo)

    def forget(self) -> None:
        """Drop remembered choices: the tuning cache or a force has changed."""
        self._memo.clear()
        self._known.forget()


def ranked(kernels: Sequence[Kernel], *first: str) -> tuple[Kernel, ...]:
    """Kernels in order of preference: those named, as the records rank them, then the others as they stand."""
    by_name = {k.name: k for k in kernels}
    return (*(by_name[nearest(n, [*by_name], "kernel to be ranked")] for n in first), *(k for k in kernels if k.name not in first))


def _apart(spec: OpSpec, names: Sequence[str], alike: bool = True) -> Iterator[tuple[int, int, bool]]:
    """Of each argument that is written, and each other of as many axes, or of another number of them: where they stand, and whether the other is only read."""
    axes = {i: len(spec.args[n].dims.split()) for i, n in enumerate(names) if n in spec.args and not spec.args[n].many}
    for i in (i for i in axes if spec.args[names[i]].mutated):
        for j in axes:
            read = not spec.args[names[j]].mutated
            if (axes[j] == axes[i]) == alike and (read or i < j):
                yield i, j, read


def _too_free(kernel: Kernel) -> str | None:
    if kernel.varies and torch.are_deterministic_algorithms_enabled():
        return f"deterministic algorithms are asked for, and here {kernel.varies}"
    return None


def _contiguous(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Results are contiguous whoever computes them; PyTorch lets strides follow the inputs."""

    @functools.wraps(reference)
    def run(*args: Any) -> Any:
        result = reference(*args)
        return tuple(t.contiguous() for t in result) if isinstance(result, tuple) else result if result is None else result.contiguous()

    return run


_VALUES = {bool, float, int, str, type(None)}


def _key(args: Sequence[Any]) -> tuple[Any, ...]:
    """A value goes with its type: 1 == 1.0 == True, and only one of them may be what an operator takes."""
    key: list[Any] = []
    for a in args:
        kind = type(a)
        if kind is Tensor or (kind not in _VALUES and isinstance(a, Tensor)):
            key.append((a.shape, a.stride(), a.dtype, a.device, at & 15 if (at := a.data_ptr()) else None, a.is_neg()))
        elif kind in _VALUES or not isinstance(a, (list, tuple)):
            key += a, kind
        else:
            key.append(_key(a))
    return tuple(key)


def _with_their_signs(arg: Any) -> Any:
    """PyTorch keeps z.conj().imag as a view of z with a bit for the sign, of which a kernel that reads memory knows nothing."""
    return [_with_their_signs(a) for a in arg] if isinstance(arg, (list, tuple)) else arg.resolve_neg() if isinstance(arg, Tensor) else arg


MANY = 20  # names in one sentence


def nearest(name: str, known: Sequence[str], what: str) -> str:
    """`name` if it is known, else ValueError with the nearest right one."""
    if name in known:
        return name
    small = {k.lower(): k for k in known}
    close = [small[k] for k in difflib.get_close_matches(name.lower(), small, 5, 0.4)]
    hint = f"; did you mean {close[0]}?" if close else "."
    all_or_close = f": {', '.join(known)}" if len(known) <= MANY else f", among them {', '.join(close)}" if close[1:] else ""
    raise ValueError(f"no {what} is called {name!r}{hint} There are {len(known)}{all_or_close}")


@contextmanager
def forced(op: str, kernel: str) -> Iterator[None]:
    """Inside, `op` (and its backward, where it has a kernel of that name) uses this kernel or raises Refused."""
    OPS[nearest(op, list(OPS), "operator")].kernel(kernel)
    _force_from_environment()
    before = dict(_forced)
    _forced[op] = kernel
    _forget_all()
    try:
        yield
    finally:
        _forced.clear()
        _forced.update(before)
        _forget_all()


@functools.cache
def _force_from_environment() -> None:
    """ROOFTILE_FORCE=softmax:triton,gemm:cublas, read once, at the first choice."""
    for item in filter(None, os.environ.get("ROOFTILE_FORCE", "").split(",")):
        op, _, kernel = item.partition(":")
        OPS[nearest(op, list(OPS), "operator in ROOFTILE_FORCE")].kernel(kernel)
        _forced[op] = kernel


@contextmanager
def launched() -> Iterator[set[str]]:
    """The names of the operators that are launched inside, there when it ends."""
    _forget_all()
    names = set[str]()
    yield names
    names.update(name for name, op in OPS.items() if op.was_launched)


def doors() -> dict[str, set[str]]:
    """Modules that declare operators, by name, and the names of those."""
    found = dict[str, set[str]]()
    for name, module in list(sys.modules.items()):
        if name.startswith("rooftile.ops.") and name.endswith("api"):
            declared = [x for x in vars(module).values() if isinstance(x, Op)]
            found[name] = {op.spec.name for one in declared for op in (one, one.backward) if op is not None}
    return found


def _forget_all() -> None:
    for op in OPS.values():
        op.forget()
