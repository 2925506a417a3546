"""An Op's two doors into PyTorch, both read off its spec and both bitwise equal.

Eager calls go through one thin autograd.Function straight to the chosen kernel. Everything that must see the operator as a node
(torch.compile, export, torch.jit.trace, autocast, dispatch modes, tensor subclasses) goes through torch.ops.rooftile.*.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

from rooftile.core.bind import device_of
from rooftile.core.spec import OpSpec

_library = torch.library.Library("rooftile", "DEF")
_PLAIN = (Tensor, torch.nn.Parameter)


class Operator(Protocol):
    """What the doors need of core.kernel.Op, which is made on top of them."""

    spec: OpSpec
    plan: Plan | None
    backward: Any
    entry: Any

    @property
    def eager(self) -> type[Eager]: ...

    def launch(self, *args: Any) -> Any: ...


def warn(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=4)


def needs_second_door(args: Sequence[Any]) -> bool:
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return True
    if forward_ad._current_level >= 0:
        _refuse_tangents(args)
    if torch._C._len_torch_dispatch_stack() or torch._C._is_any_autocast_enabled():
        return True
    for a in args:  # noqa: SIM110  any() over a generator costs 0.3 us more, and this runs at every call
        if type(a) not in _PLAIN and (isinstance(a, Tensor) or (isinstance(a, (list, tuple)) and needs_second_door(a))):
            return True
    return False


def transforms(args: Sequence[Any] = ()) -> list[str]:
    """torch.func's, that this call is inside of. The vmap of autograd's is_grads_batched stands on no stack: its tensors show it."""
    stack = [level.key().name for level in torch._C._functorch.get_interpreter_stack() or ()]
    return stack or ["Vmap"] * any("Batched" in str(torch._C._dispatch_keys(a)) for a in args if isinstance(a, Tensor))


def hollow(args: Sequence[Any]) -> bool:
    """Whether torch.func.functionalize has wrapped one: what it wraps has memory, and its own address is 0, without a word."""
    return any(hollow(a) if isinstance(a, (list, tuple)) else isinstance(a, Tensor) and torch._is_functional_tensor(a) for a in args)


def traced(args: Sequence[Any]) -> bool:
    """Whether a function around operators leaves this call to them: it must be seen as nodes, or is inside a transform."""
    return needs_second_door(args) or bool(transforms())


def sharded(value: Any) -> bool:
    """Whether it is a DTensor, or a list with one: torch.distributed.tensor need not be imported for that."""
    return any(map(sharded, value)) if isinstance(value, (list, tuple)) else isinstance(value, Tensor) and hasattr(value, "to_local")


def follows(t: Tensor) -> bool:
    """Whether autograd follows t. Inside vmap a tensor never says so: what it wraps does."""
    if not torch.compiler.is_compiling():
        while torch._C._functorch.is_functorch_wrapped_tensor(t):
            t = torch._C._functorch.get_unwrapped(t)
    return t.requires_grad


class Plan:
    """How a forward call becomes its backward's arguments, worked out once from the two signatures."""

    def __init__(self, spec: OpSpec):
        gradient = spec.gradient
        assert spec.backward is not None and gradient is not None
        inputs, results = list(spec.signature.parameters), list(spec.returns)
        wanted = list(gradient.signature.parameters)
        self.takes = [i for i, r in enumerate(results) if f"d{r}" in wanted]
        self.silent = [i for i in range(len(results)) if i not in self.takes]  # results no gradient flows through
        self.saved_inputs = [inputs.index(n) for n in wanted if n in spec.args]
        self.saved_results = [results.index(n) for n in wanted if n in results and n not in spec.args]
        self.parameters = [inputs.index(n) for n in wanted if n in inputs and n not in spec.args]
        order = [f"d{results[i]}" for i in self.takes] + [inputs[i] for i in self.saved_inputs]
        order += [results[i] for i in self.saved_results] + [inputs[i] for i in self.parameters]
        if sorted(order) != sorted(wanted):
            raise ValueError(f"{gradient.name}: its signature wants {wanted}, the forward offers {order}")
        self.order = [order.index(n) for n in wanted]
        self.groups = [[inputs.index(n) for n in g] for g in spec.backward.groups]
        self.passes = [inputs.index(n) for n in spec.backward.passes]
        self.grads = [i for g in self.groups for i in g]
        self.count = len(inputs)
        self.name = spec.name
        self.spared = [(len(self.takes) + at, i) for at, i in enumerate(self.saved_inputs) if inputs[i] in spec.backward.spared]
        self.shaped = [at for at, i in enumerate(self.saved_inputs) if inputs[i] in spec.backward.shaped]
        self.identity = spec.backward.identity

    def wants_grad(self, args: Sequence[Any]) -> bool:
        try:
            return any(args[i] is not None and args[i].requires_grad for i in (*self.grads, *self.passes))
        except AttributeError:  # no tensor: the door says so
            return False

    def save(self, ctx: Any, args: Sequence[Any], results: Sequence[Tensor]) -> None:
        """What is spared is not kept either: an optimizer that steps within the backward pass may have written it by then."""
        inputs = [args[i] for i in self.saved_inputs]
        if self.spared:
            needs = self._needs(ctx)
            for at, i in self.spared:
                if not needs[i]:
                    inputs[at - len(self.takes)] = None
        if self.shaped:  # it may be large, and whoever made it may want its memory
            ctx.shapes = [(inputs[at].shape, inputs[at].dtype, inputs[at].device) for at in self.shaped]
            for at in self.shaped:
                inputs[at] = None
        ctx.save_for_backward(*inputs, *(results[i] for i in self.saved_results))
        ctx.parameters = [args[i] for i in self.parameters]
        if len(self.takes) > 1:  # one may arrive without the other
            ctx.results = [(results[i].shape, results[i].dtype, results[i].device) for i in self.takes]
        ctx.set_materialize_grads(False)

    def _needs(self, ctx: Any) -> tuple[bool, ...]:
        needs: tuple[bool, ...] = ctx.needs_input_grad[ctx.offset :]
        return needs + (False,) * (self.count - len(needs))  # torch.library leaves off trailing arguments that have their default

    def backward(self, ctx: Any, call: Callable[..., Any], grads: Sequence[Tensor | None], tie: bool = True) -> tuple[Tensor | None, ...]:
        """`tie`: what is made, to what it was made from; else the call itself does."""
        out: list[Tensor | None] = [None] * self.count
        taken = [grads[i] for i in self.takes]
        if all(g is None for g in taken):
            return tuple(out)
        if len(taken) > 1:
            taken = [torch.zeros(s, dtype=t, device=d) if g is None else g for g, (s, t, d) in zip(taken, ctx.results)]
        needs = self._needs(ctx)
        if self.identity:
            return tuple(taken[0] if i in self.grads and needs[i] else None for i in range(self.count))
        for i in self.passes:
            out[i] = taken[0] if needs[i] else None
        if self.passes and not any(needs[i] for i in self.grads):
            return tuple(out)
        offered = [*taken, *ctx.saved_tensors, *ctx.parameters]
        for at, i in self.spared:
            if not needs[i]:
                offered[at] = None
        for at, (s, t, d) in zip(self.shaped, ctx.shapes if self.shaped else ()):
            offered[len(self.takes) + at] = torch.empty(s, dtype=t, device=d)
        ordered = [offered[i] for i in self.order]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not tie):
            made = call(*ordered)
        made = made if isinstance(made, (tuple, list)) else (made,)
        if tie and torch.is_grad_enabled():  # create_graph=True
            made = _tied(self.name, made, ordered)
        for group, g in zip(self.groups, made):
            for i in group:
                out[i] = g if needs[i] else None
        return tuple(out)


class Eager(torch.autograd.Function):
    """The thin door: one Function for every operator, of which each has a class of its name (`eager`)."""

    @staticmethod
    def forward(ctx: Any, op: Operator, *args: Any) -> Any:
        result = _own(op.launch(*args))
        results = result if isinstance(result, tuple) else (result,)
        plan = op.plan
        assert plan is not None
        ctx.op, ctx.offset = op, 1
        plan.save(ctx, args, results)
        if plan.silent:
            ctx.mark_non_differentiable(*(results[i] for i in plan.silent))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        op = ctx.op
        run = op.backward.entry if needs_second_door(grads) else op.backward.launch
        return (None, *op.plan.backward(ctx, run, grads))


def eager(spec: OpSpec) -> type[Eager]:
    """PyTorch names a node of its graph by its class, in anomaly mode, in a profile and where a graph is drawn."""
    return type(f"rooftile_{spec.name}", (Eager,), {})


class Transformed(torch.autograd.Function):
    """The door inside torch.func's grad, vjp and jacrev, and vmap of them: what is computed and what is kept of it stand apart, as they want it. What has
    no gradient, as a gradient has none, says so where it is differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(op: Operator, *args: Any) -> Any:
        return _own(op.launch(*args))

    @staticmethod
    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        (op, *args), results = inputs, output if isinstance(output, tuple) else (output,)
        ctx.op, ctx.offset = op, 1
        if op.plan is None:
            return
        op.plan.save(ctx, args, results)
        if op.plan.silent:
            ctx.mark_non_differentiable(*(results[i] for i in op.plan.silent))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        op = ctx.op
        if op.plan is None:
            raise RuntimeError(AGAIN.format(op.spec.name.removesuffix("_backward")))
        inside = bool(transforms())
        run = functools.partial(Transformed.apply, op.backward) if inside else op.backward.entry
        return (None, *op.plan.backward(ctx, run, grads, tie=not inside))


AGAIN = "{}: its gradient cannot be differentiated again, that of PyTorch's own operator can"


class Once(torch.autograd.Function):
    """A gradient, tied to what it was made from: else it were a constant to whoever differentiates it again, and nobody would know."""

    @staticmethod
    def forward(ctx: Any, name: str, made: Sequence[Tensor | None], *sources: Tensor) -> Any:
        ctx.name = name
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        raise RuntimeError(AGAIN.format(ctx.name))


def _own(result: Any) -> Any:
    """A kernel may give a view of what it made, and nobody else has that. But autograd lets nobody write to a view that comes from a function."""
    if isinstance(result, tuple):
        return tuple([t.data if t is not None and t._is_view() else t for t in result])
    return result.data if result is not None and result._is_view() else result


def _tied(name: str, made: Sequence[Tensor | None], inputs: Sequence[Any]) -> Sequence[Tensor | None]:
    sources = [t for t in inputs if isinstance(t, Tensor) and t.requires_grad]
    return Once.apply(name, made, *sources) if sources else made


def once(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Of an autograd function's backward: it is not differentiated again. PyTorch's once_differentiable says so only where the gradient that comes in
    requires one itself."""

    def refusing(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def run(ctx: Any, *grads: Tensor | None) -> Any:
            inputs = (*grads, *ctx.saved_tensors) if torch.is_grad_enabled() else ()  # create_graph=True
            with torch.no_grad():
                made = backward(ctx, *grads)
            if not inputs:
                return made
            return _tied(name, [g if g is None else g.detach() for g in made], inputs)

        return run

    return refusing


def second_door(op: Operator) -> Any:
    """Define torch.ops.rooftile.<name> with implementation, fake, autograd and, where the spec asks, autocast."""
    spec = op.spec
    name = f"rooftile::{spec.name}"
    _library.define(spec.name + spec.schema)

    def implementation(*args: Any, **kwargs: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents((*args, *kwargs.values()))
        with torch._C._DisableAutocast():  # it would cast what is computed inside
            return _own(op.launch(*_all(spec, args, kwargs)))

    def fake(*args: Any, **kwargs: Any) -> Any:
        return spec.empty_returns(spec.complete(args, kwargs))

    _library.impl(spec.name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(name, fake, lib=_library)
    if op.plan is not None:
        _register_autograd(op, name)
    if not any(a.many or a.mutated for a in spec.args.values()):
        torch.library.register_vmap(name, functools.partial(_mapped, spec), lib=_library)
    register_flop_formula(getattr(torch.ops.rooftile, spec.name), get_raw=True)(functools.partial(_operations, spec))
    entry = getattr(torch.ops.rooftile, spec.name).default
    if spec.autocast:
        for device in ("CUDA", "CPU"):
            _library.impl(spec.name, _autocast(entry, device), f"Autocast{device}")
    return entry


def _mapped(spec: OpSpec, info: Any, in_dims: Sequence[int | None], *args: Any) -> Any:
    """What vmap makes of a call. Where what is mapped and all results have leading axes that are free, samples are one more of them; where all tensors begin
    with a batch, they are more of it. Where not, or where what is drawn would be another's, each sample is a call."""
    entry, call, samples = getattr(torch.ops.rooftile, spec.name).default, spec.complete(args), info.batch_size
    mapped = {n: call[n].movedim(at, 0) for n, at in zip(call, in_dims) if at is not None}
    there = {n for n in spec.args if call[n] is not None}
    left_out = {n for n, r in spec.returns.items() if r.optional and call.get(n.removeprefix("d")) is None}
    first = {n: a.dims.partition(" ")[0] for n, a in {**spec.args, **spec.returns}.items()}

    def led_by(axis: str, names: Iterable[str]) -> bool:
        return call.get("seed") is None and all(first[n] == axis for n in (*names, *spec.returns.keys() - left_out))

    if led_by("...", mapped):
        shared = {n: call[n].expand(samples, *call[n].shape) for n in there - mapped.keys() if first[n] == "..."}
        made = _several(entry(*(call | mapped | shared).values()))
    elif there == mapped.keys() and led_by("B", there):
        made = _several(entry(*(call | {n: t.flatten(0, 1) for n, t in mapped.items()}).values()))
        made = tuple(t if n in left_out else t.unflatten(0, (samples, t.shape[0] // samples)) for n, t in zip(spec.returns, made))
    else:
        warn(f"vmap calls {spec.name} once a sample, {samples} times")
        each = [_several(entry(*(call | {n: t[i] for n, t in mapped.items()}).values())) for i in range(samples)]
        none = _several(spec.empty_returns(call | {n: t.new_empty(t.shape[1:]) for n, t in mapped.items()})) if not each else ()
        made, left_out = tuple(torch.stack(t) for t in zip(*each)) or tuple(t[None][:0] for t in none), set()
    dims = tuple(None if n in left_out else 0 for n in spec.returns)
    return (made, dims) if len(made) > 1 else (made[0], dims[0])


def _several(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _operations(spec: OpSpec, *args: Any, out_val: Any = None, **kwargs: Any) -> int:
    """For PyTorch's counter, to which what it has no formula of is 0."""
    return int(spec.operations(spec.complete(args, kwargs)))


def _refuse_tangents(args: Sequence[Any]) -> None:
    """A kernel would drop them, and the derivative would be zero without a word."""
    try:
        seen = any(forward_ad.unpack_dual(a).tangent is not None for a in args if isinstance(a, Tensor))
    except RuntimeError:  # under vmap nobody can say
        seen = True
    if seen:
        raise NotImplementedError("rooftile's operators have no forward-mode derivatives: differentiate backward")


def without_gradient(spec: OpSpec, name: str) -> str:
    """What is said where this argument requires a gradient that nobody gives."""
    of = f" of {name}" if spec.backward is not None else ""
    return f"{spec.name} has no gradient{of}, and {name} requires one: call it under torch.no_grad(), or detach {name}"


def _all(spec: OpSpec, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
    if not kwargs and len(args) == len(spec.signature.parameters):
        return args
    return tuple(spec.complete(args, kwargs).values())


def _register_autograd(op: Operator, name: str) -> None:
    plan, spec = op.plan, op.spec
    assert plan is not None and op.backward is not None
    gradient = op.backward.entry

    constant = [(i, n) for i, n in enumerate(spec.signature.parameters) if n in spec.constants]

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        for i, n in constant:
            if inputs[i] is not None and inputs[i].requires_grad:
                raise ValueError(without_gradient(spec, n))
        ctx.offset = 0
        plan.save(ctx, inputs, output if isinstance(output, tuple) else (output,))

    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return plan.backward(ctx, gradient, grads)

    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=_library)


def _autocast(entry: Any, device: str) -> Callable[..., Any]:
    key = getattr(torch._C.DispatchKey, f"Autocast{device}")

    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(device.lower())
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return entry(*(_cast(a, dtype) for a in args), **{k: _cast(v, dtype) for k, v in kwargs.items()})

    return run


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64 else value


def without_autocast(spec: OpSpec, door: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Through a door that autocast does not see, with what it would have made of the arguments."""
    where = device_of(args)
    if spec.autocast and where is not None and torch.is_autocast_enabled(where.type):
        args = [_cast(a, torch.get_autocast_dtype(where.type)) for a in args]
    with torch._C._DisableAutocast():
        return door(*args)
