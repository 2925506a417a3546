"""What an operator means, declared once: its reference, its tensors, its cases, its tolerance and its cost.

DESIGN.md has the law of letters, which name axes here as in docstrings, Triton constants and CUDA templates, and the law of names, by which a
backward's signature says what it saves, which output gradients it takes and where its results go.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rooftile.core.bind import FIXED, Binding, Call, letter

Make = Callable[[Sequence[int], torch.dtype, torch.Generator, Mapping[str, Any]], Tensor]
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
USES = ("smoke", "check", "bench", "call")


def normal(shape: Sequence[int], dtype: torch.dtype, gen: torch.Generator, dims: Mapping[str, Any]) -> Tensor:
    return torch.randn(shape, generator=gen, device=gen.device).to(dtype)


def positive(shape: Sequence[int], dtype: torch.dtype, gen: torch.Generator, dims: Mapping[str, Any]) -> Tensor:
    """Uniform on [0.5, 1.5): weights whose sign cannot hide an error."""
    return torch.rand(shape, generator=gen, device=gen.device).add(0.5).to(dtype)


def index(letter: str) -> Make:
    """Draws indices into the axis `letter`."""
    return lambda shape, dtype, gen, dims: torch.randint(0, max(1, dims[letter]), shape, generator=gen, device=gen.device, dtype=dtype)


@dataclass(frozen=True)
class Arg:
    """One tensor of the signature. dtype: io (the case's), f32, i64, ..., io|f32 or i32|i64 (either), =x (that of the argument x),
    @to (the one that the parameter `to` names)."""

    dims: str = "..."
    dtype: str = "io"
    make: Make = normal  # of a result: how its gradient is drawn
    optional: bool = False
    mutated: bool = False  # written in place: an input and an output at once
    many: bool = False  # a list of tensors; its one letter binds their shapes
    saved: bool = False  # of a result: nobody but a gradient reads it
    word: str = ""  # of an optional argument: the parameter of those cases that have it, which names its dtype; others are called without

    def shape(self, dims: Mapping[str, Any]) -> tuple[int, ...]:
        axes = [letter(x) for x in self.dims.split()]
        try:
            return tuple(s for x, more in axes for s in (dims[x] if x == "..." else (dims[x] + more,)))
        except KeyError as error:
            raise ValueError(
                f"[{self.dims}]: no argument says how long {error} is, nor does follows; known are {', '.join(dims)}"
            ) from error

    def torch_dtype(self, io: torch.dtype, call: Call | None = None) -> torch.dtype:
        if self.dtype.startswith("="):
            like = (call or {}).get(self.dtype[1:])
            return io if like is None else like.dtype
        if self.dtype.startswith("@"):
            return getattr(torch, (call or {})[self.dtype[1:]])
        return io if self.dtype.startswith("io") else FIXED[self.dtype]


@dataclass(frozen=True)
class Case:
    """One point of the grid."""

    dims: Mapping[str, Any]
    dtype: torch.dtype = torch.float32
    params: Mapping[str, Any] = field(default_factory=dict)
    # of USES. smoke: tiny, in every run of the tests; check: the gate; bench: timed, on a GPU; call: so small that the host's time decides
    use: tuple[str, ...] = ("check",)
    why: str = ""

    @property
    def id(self) -> str:
        def text(v: Any) -> str:
            if isinstance(v, tuple) and any(isinstance(s, tuple) for s in v):
                return f"{len(v)}of{sum(math.prod(s) for s in v)}"  # a list of tensors: how many, with how many elements in all
            return "x".join(map(str, v)) if isinstance(v, tuple) else str(v).replace(" ", "")

        dims = [f"{k.replace('...', '')}{text(v)}" for k, v in self.dims.items()]
        params = [f"{k}={v}" for k, v in self.params.items()]
        return "-".join(["_".join(dims), str(self.dtype).removeprefix("torch."), *params])


def across(dtypes: Sequence[torch.dtype], *cases: Case) -> tuple[Case, ...]:
    return tuple(replace(c, dtype=t) for c in cases for t in dtypes)


@dataclass(frozen=True)
class Tolerance:
    """Derived, not chosen: so many times the error PyTorch's own result has on the same inputs (workbench/gauge.py has the formula)."""

    factor: float = 2.0  # elementwise
    aggregate: float = 1.5  # relative error of whole rows, which averages and so is held tighter


@dataclass(frozen=True)
class Backward:
    """The gradient, itself an operator. `reference` takes d<output> for the output gradients it needs, and by name whatever
    it wants of the forward's arguments, results and parameters; it returns one gradient for each entry of `grads`. An entry
    names one argument or several: in ("x residual", "weight") the first result, dx, is the gradient of x and of residual."""

    reference: Callable[..., Any]
    grads: tuple[str, ...]
    flops: Callable[[Mapping[str, Any]], float] = lambda d: 0
    moved: Callable[[Call, Sequence[Tensor]], int] | None = None
    tolerance: Tolerance = Tolerance()
    dtypes: Mapping[str, str] = field(default_factory=dict)  # of gradients that do not have their argument's dtype: {"dx": "=sum"}
    passes: tuple[str, ...] = ()  # arguments whose gradient is the one output gradient itself, handed on by autograd
    spared: tuple[str, ...] = ()  # optional ones, read for their own gradient alone: None to `reference` where nobody wants it
    shaped: tuple[str, ...] = ()  # asked for shape, dtype and device alone: not kept, and `reference` gets memory that holds anything
    identity: bool = False  # every gradient is the one output gradient itself: autograd passes it on and no kernel runs

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(names.split()) for names in self.grads)

    @property
    def leaves(self) -> tuple[str, ...]:
        """Every argument with a gradient; first those that give a gradient its name, in the order of the results."""
        return (*(g[0] for g in self.groups), *(n for g in self.groups for n in g[1:]), *self.passes)


@dataclass(frozen=True)
class OpSpec:
    name: str
    reference: Callable[..., Any]  # plain PyTorch; its Python signature is the operator's signature
    args: Mapping[str, Arg]
    returns: Mapping[str, Arg]
    cases: tuple[Case, ...]
    peer: Callable[..., Any] | None = None  # PyTorch's own, same signature, its first output or first few; the measure of error
    backward: Backward | None = None
    tolerance: Tolerance = Tolerance()
    flops: Callable[[Mapping[str, Any]], float] = lambda d: 0
    dtypes: tuple[torch.dtype, ...] = FLOATS
    families: tuple[str, ...] = ("scaled_rows", "large", "all_equal", "nan")  # input families beside the normal one
    linear: bool = False  # small integers must come out bit-exact
    exact: bool = False  # the reference says every rounding: its result in the working dtype is the truth, to the last bit
    autocast: bool = False  # under autocast, floating tensors are cast to its dtype first
    draw_with: Callable[[dict[str, Any], Case, torch.Generator], dict[str, Any]] | None = None  # inputs that depend on each other
    moved: Callable[[Call, Sequence[Tensor]], int] | None = None
    validate: Callable[[Call, Mapping[str, Any]], None] | None = None  # what letters cannot say, once per new call shape
    # letters of no argument, from those of others and parameters
    follows: Callable[[Call, Mapping[str, Any]], Mapping[str, int]] | None = None
    unsaid: Mapping[str, str] = field(default_factory=dict)  # letters that a case need not give: {"G": "H"}, as many as of H
    forward: OpSpec | None = None  # of a gradient: the operator it differentiates

    def __post_init__(self) -> None:
        """A slip in the declaration is told here: later it is a KeyError, or a case that is not the one it says."""
        if self.forward is None:  # a gradient's is derived
            for slip in _slips(self):
                raise ValueError(f"{self.name} is declared with {slip}")

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.reference)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        return {n: p.default for n, p in self.signature.parameters.items() if p.default is not p.empty}

    @cached_property
    def schema(self) -> str:
        return torch.library.infer_schema(self.reference, mutates_args=[n for n, a in self.args.items() if a.mutated])

    @cached_property
    def constants(self) -> tuple[str, ...]:
        """Arguments of real numbers that get no gradient."""
        leaves = self.backward.leaves if self.backward is not None else ()
        return tuple(n for n, a in self.args.items() if n not in leaves and FIXED.get(a.dtype, torch.float32).is_floating_point)

    @cached_property
    def gradient(self) -> OpSpec | None:
        """The backward as an operator of its own, derived from this one by the law of names."""
        b = self.backward
        if b is None:
            return None
        known = {**self.args, **self.returns, **{f"d{n}": a for n, a in self.returns.items()}}
        args = {n: known[n] for n in inspect.signature(b.reference).parameters if n in known}
        lost = {n: a.dtype[1:] for n, a in args.items() if a.dtype[0] == "=" and a.dtype[1:] not in args}  # like what it is not given
        args |= {n: replace(args[n], dtype=known[like].dtype) for n, like in lost.items()}
        returns = {
            f"d{n}": replace(
                self.args[n], dtype=b.dtypes.get(f"d{n}", f"={n}" if "|" in self.args[n].dtype and n in args else self.args[n].dtype)
            )
            for n, *_ in b.groups
        }
        cases = tuple(c for c in self.cases if c.dtype.is_floating_point)  # whole numbers have no gradient
        dtypes = tuple(t for t in self.dtypes if t.is_floating_point)
        return OpSpec(f"{self.name}_backward", b.reference, args, returns, cases, flops=b.flops, moved=b.moved, tolerance=b.tolerance,
                      dtypes=dtypes, families=self.families, linear=self.linear, forward=self)  # fmt: skip

    def complete(self, args: Sequence[Any], kwargs: Mapping[str, Any] = {}) -> dict[str, Any]:
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def bind(self, call: Call) -> dict[str, Any]:
        """Letters of a call; ValueError with both numbers where two tensors disagree."""
        dims = Binding(self.name, self.dtypes).letters(self.args, call)
        if self.follows is not None:
            dims.update(self.follows(call, dims))
        if self.validate is not None:
            self.validate(call, dims)
        return dims

    def io(self, call: Call) -> torch.dtype:
        names = [n for n, a in self.args.items() if a.dtype == "io"] or [n for n, a in self.args.items() if "|" in a.dtype]
        first: Any = next(call[n] for n in names if call[n] is not None)
        return (first[0] if isinstance(first, (list, tuple)) else first).dtype

    def results(self, call: Call) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """The shape and the dtype of each result, as they are declared. One that nobody asked for has no elements."""
        dims, io = self.bind(call), self.io(call)
        left_out = {n for n, r in self.returns.items() if r.optional and call.get(n.removeprefix("d")) is None}
        return [((0,) if n in left_out else r.shape(dims), r.torch_dtype(io, call)) for n, r in self.returns.items()]

    def empty_returns(self, call: Call) -> Any:
        """Outputs of the right shape, dtype and device with nothing in them; also what torch.compile sees."""
        if not self.returns:
            return None
        like = next(t for v in call.values() for t in (v if isinstance(v, (list, tuple)) else [v]) if isinstance(t, Tensor))
        out = tuple(like.new_empty(shape, dtype=dtype) for shape, dtype in self.results(call))
        return out[0] if len(out) == 1 else out

    # ---- inputs ----------------------------------------------------------------------------------------------------------

    def given(self, case: Case) -> dict[str, Arg]:
        """The arguments that a case has."""
        words = {n: case.params.get(a.word) for n, a in self.args.items() if a.word}
        return {n: replace(a, dtype=words.get(n) or a.dtype) for n, a in self.args.items() if words.get(n, True)}

    def letters(self, case: Case) -> dict[str, Any]:
        """A case's, with those that follow from others."""
        dims = dict(case.dims)
        dims.setdefault("...", (dims["M"],) if "M" in dims else ())
        if "M" not in self.unsaid:
            dims.setdefault("M", math.prod(dims["..."]))
        return {**{x: dims[like] for x, like in self.unsaid.items()}, **dims}

    def draw(self, case: Case, seed: int = 0, device: str | torch.device = "cpu",
             vary: Callable[[str, Arg, Tensor], Tensor] = lambda n, a, t: t) -> dict[str, Any]:  # fmt: skip
        """Random inputs of a case. A gradient's are its forward's, what the forward reference saves, and output gradients as results are drawn."""
        gen = torch.Generator(device=device).manual_seed(seed)
        if self.forward is not None:
            call = self.forward.draw(case, seed, device, vary)
            results = self.forward.reference(**call)
            results = results if isinstance(results, tuple) else (results,)
            call |= dict(zip(self.forward.returns, results))
            assert self.forward.backward is not None
            for t in (call[n] for n in self.forward.backward.shaped):
                if t.is_contiguous() and t.is_floating_point():
                    t.fill_(math.nan)  # whoever reads it is seen
            gen.manual_seed(seed + 1)
            call |= {f"d{n}": vary(f"d{n}", self.args[f"d{n}"], self.args[f"d{n}"].make(r.shape, r.dtype, gen, {}))
                     for n, r in zip(self.forward.returns, results) if f"d{n}" in self.args}  # fmt: skip
            return {n: call[n] for n in self.signature.parameters}
        dims = self.letters(case)
        call = dict(self.defaults)
        for name, arg in self.given(case).items():
            shapes = dims[arg.dims] if arg.many else [arg.shape(dims)]
            made = [vary(name, arg, arg.make(s, arg.torch_dtype(case.dtype), gen, dims)) for s in shapes]
            call[name] = made if arg.many else made[0]
        call |= case.params
        if self.draw_with is not None:
            call = self.draw_with(call, case, gen)
        return {n: call[n] for n in self.signature.parameters}

    # ---- cost ------------------------------------------------------------------------------------------------------------

    def bytes(self, call: Call, results: Sequence[Tensor]) -> int:
        """Bytes an ideal kernel moves: every tensor read once or written once, one in place both."""
        if self.moved is not None:
            return self.moved(call, results)
        tensors = [
            (t, 2 if a.mutated else 1) for n, a in self.args.items() if call[n] is not None for t in (call[n] if a.many else [call[n]])
        ]
        return sum(t.numel() * t.itemsize * k for t, k in [*tensors, *((r, 1) for r in results)])

    def floor_bytes(self, call: Call) -> int:
        """`bytes` of a call that wants no gradient: results that only a gradient reads are left out."""
        made = self.empty_returns(call)
        results = made if isinstance(made, tuple) else () if made is None else (made,)
        return self.bytes(call, [t for t, r in zip(results, self.returns.values()) if not r.saved])

    def operations(self, call: Call, dims: Mapping[str, Any] | None = None) -> float:
        """`dims`: what else the call's case says, as how a mask was drawn."""
        known = {**(dims or {}), **self.bind(call), **{n: v for n, v in call.items() if not isinstance(v, Tensor)}}
        try:
            return self.flops(known)
        except KeyError as error:
            raise ValueError(f"{self.name}: its flops ask for {error}, a call has {', '.join(known)}") from error


def _slips(spec: OpSpec) -> Iterator[str]:
    """What does not fit together in a declaration, in words that go on after `is declared with`."""
    has = list(spec.signature.parameters)
    yield from (f"an argument {n!r}: its reference takes {', '.join(has)}" for n in spec.args if n not in has)
    leaves = spec.backward.leaves if spec.backward is not None else ()
    yield from (f"a gradient of {n!r}: its arguments are {', '.join(spec.args)}" for n in leaves if n not in spec.args)
    shaped = spec.backward.shaped if spec.backward is not None else ()
    yield from (f"a shape of {n!r}: its arguments are {', '.join(spec.args)}" for n in shaped if n not in spec.args)
    offered = list(dict.fromkeys([*(f"d{n}" for n in spec.returns), *has, *spec.returns]))
    taken = inspect.signature(spec.backward.reference).parameters if spec.backward is not None else ()
    yield from (f"a gradient that takes {n!r}: it may take {', '.join(offered)}" for n in taken if n not in offered)
    arguments = {**spec.args, **spec.returns}
    yield from (f"{n} of {a.dtype!r}, which is no dtype" for n, a in arguments.items() if not _known_dtype(a.dtype, has))
    params = [*has, *(a.word for a in spec.args.values() if a.word)]
    axes = list(dict.fromkeys(letter(x)[0] for a in arguments.values() for x in a.dims.split()))
    if "..." in axes:
        axes.append("M")  # all of them in one number
    for case in spec.cases:
        wrong = [f"its use is {use!r}, there are {', '.join(USES)}" for use in case.use if use not in USES]
        if spec.draw_with is None:  # which may read words of its own
            wrong += [f"{n!r} is no parameter, there are {', '.join(params)}" for n in case.params if n not in params]
        said = spec.letters(case)
        for n, a in spec.given(case).items():
            wrong += [f"it lacks {x}, an axis of {n} [{a.dims}]" for x, _ in map(letter, a.dims.split()) if x not in said]
        odd = [x for x in case.dims if len(x) == 1 and x not in axes]  # words are for who draws
        wrong += [f"{x!r} is no axis, there are {', '.join(axes)}" for x in odd]
        yield from (f"the case {case.id}: {slip}" for slip in wrong)


def _known_dtype(dtype: str, names: Sequence[str]) -> bool:
    return dtype in FIXED or all(d == "io" or d in FIXED for d in dtype.split("|")) or (dtype[:1] in ("=", "@") and dtype[1:] in names)
