"""A launcher that need not think twice.

What a launcher allocates and launches is fixed by the shapes, strides, dtypes, alignment and parameters of its call, and by these
an `Op` remembers who runs it. So the second such call is recorded, and from the third on its allocations and launches are replayed
as straight-line code with this call's pointers: no row views, no grids, no keys. A launcher that computes anything by itself
(a copy of a strided input) is not replayable and stays what it is, but for PyTorch's products, which are made again; a table that it only looks
up is looked up again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from rooftile.core import places

Run = Callable[..., Any]
STREAM = object()  # stands in a noted call for the stream that is current when it is replayed

_FACTORIES = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}

# Products of matrices. What a replay allocates it holds until it ends, where a launcher lets go of what has been read: so only where all of it is little.
_PRODUCTS = {getattr(op, overload): call if overload == "default" else getattr(op, overload)
             for op, call in ((torch.ops.aten.mm, torch.mm), (torch.ops.aten.addmm, torch.addmm)) for overload in op.overloads()}  # fmt: skip
LITTLE = 2**25  # bytes


# Who knows a call's launcher says what it calls in turn, and with which arguments, where nothing in between depends on the call.
shorter: list[Callable[[Run, Sequence[Any]], tuple[Run, Sequence[Any]] | None]] = []


class Addressed:
    """An argument of a launch that holds the address of `tensor` in some form: `at(address)` is that form for another call's, made without
    `tensor`, which is gone by then."""

    tensor: Tensor

    def at(self, address: int) -> Any:
        raise NotImplementedError


def lookup(find: Callable[..., Tensor], *about: Any) -> Tensor:
    """`find(*about)`, a tensor that lives from call to call, such as a table; a tuple of tensors in `about` goes as their addresses. A replay
    asks `find` again, with its own call's addresses."""
    follower = recorder()
    said = [tuple(t.data_ptr() for t in a) if _are_tensors(a) else a for a in about]
    return find(*said) if follower is None else follower.found(find, about, said)


def recorder() -> Recorder | None:
    """Who records this thread's launches, if anyone does."""
    if not torch._C._len_torch_dispatch_stack():
        return None
    mode = _get_current_dispatch_mode()
    return mode if isinstance(mode, Recorder) else None


class Recorder(TorchDispatchMode):
    """Follows every tensor of one call back to an argument or an allocation, and writes down what is launched on them."""

    def __init__(self, args: Sequence[Any], device: torch.device):
        super().__init__()
        self.device = device
        self.why = ""  # not replayable
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self._roots: dict[int, tuple[str, Tensor]] = {}
        self._kept: list[Tensor] = []  # an id is a name only while its tensor lives
        self._allocations = self._bytes = 0
        self._multiplies = False
        self._guards: list[str] = []
        self._shapeless: dict[str, int] = {}  # allocations of which only the addresses have been asked: their lines
        self._reshaped: set[str] = set()
        self._aside = False  # what happens now is not the launcher's
        self.parameters = [f"a{i}" for i in range(len(args))]
        for name, value in zip(self.parameters, args):
            for text, tensor in named(name, value):
                if id(tensor) in self._roots:
                    self.why = "one tensor is given twice, and the next call may give two"
                self._root(tensor, text, tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._aside:
            return out
        if func in _FACTORIES and out.device == self.device:
            name = self._made(out, self._empty(out))
            self._shapeless[name] = len(self.lines) - 1
        elif func in _PRODUCTS:
            self._multiplies = True
            given = [*map(self._operand, args), *(f"{n}={self._operand(v)}" for n, v in (kwargs or {}).items())]
            made = f"{self._constant(_PRODUCTS[func])}({', '.join(given)})"
            if id(out) in self._roots:  # it was given
                self.lines.append(made)
            else:
                self._made(out, made)
        elif getattr(func, "is_view", False) and isinstance(out, Tensor) and id(args[0]) in self._roots:
            self._root(out, *self._roots[id(args[0])])
        else:
            self.why = f"{func} computes"
        return out

    def note(self, call: Run, args: Sequence[Any], unless: Callable[[], Any] | None = None, aligned: int = 1) -> None:
        """`call(*args)` has just launched. `unless`: where it is true, the launcher itself must run; and where one of the call's own tensors does not begin at
        a multiple of `aligned`, a power of two."""
        if unless is not None:
            self.names.setdefault("unless", unless)
            self._guards.append("unless()")
        call, args = next((found for find in shorter if (found := find(call, args)) is not None), (call, args))
        given = [t for t in args if isinstance(t, Tensor) and self._roots.get(id(t), ("",))[0].startswith("a")]
        if aligned > 1 and given:
            self._guards.append(f"({' | '.join(map(self._argument, given))}) & {aligned - 1}")
        self.lines.append(f"{self._constant(call)}({', '.join(map(self._argument, args))})")

    def found(self, find: Callable[..., Tensor], about: Sequence[Any], said: Sequence[Any]) -> Tensor:
        self._aside = True
        try:
            out = find(*said)
        finally:
            self._aside = False
        name = f"k{len(self.lines)}"
        asked = [f"({', '.join(map(self._argument, a))},)" if _are_tensors(a) else self._constant(a) for a in about]
        self.lines.append(f"{name} = {self._constant(find)}({', '.join(asked)})")
        self._root(out, name, out)
        return out

    def code(self, run: Run, result: Any) -> Run | None:
        """The recorded call as a function, or None where it cannot be replayed."""
        results = result if isinstance(result, tuple) else () if result is None else (result,)
        given = [self._result(t) for t in results]
        if self._multiplies and self._bytes > LITTLE:
            self.why = f"{self._bytes} bytes would be held to the end"
        if self.why:
            return None
        back = f"return {', '.join(given)}{',' if isinstance(result, tuple) else ''}" if given else "return None"
        signature = ", ".join(self.parameters)
        # inside another launcher that is being recorded the launches must be seen, and so must allocations wherever a mode looks on
        unlike = dict.fromkeys([f"device() != {self.device.index or 0}", "modes()", *self._guards])
        guard = f"if {' or '.join(unlike)}: return plain({signature})"
        stream = [f"s = stream({self.device.index or 0})"] if any("s," in line for line in self.lines) else []
        body = "\n    ".join([guard, *stream, *self.lines, back])
        scope = {**_platform(self.device), **self.names, "plain": run}
        exec(f"def replay({signature}):\n    {body}\n", scope)
        return scope["replay"]

    def _made(self, out: Tensor, text: str) -> str:
        name = f"o{self._allocations}"
        self._allocations += 1
        self._bytes += out.nbytes
        self.lines.append(f"{name} = {text}")
        self._root(out, name, out)
        return name

    def _empty(self, like: Tensor) -> str:
        return f"empty({tuple(like.shape)}, {like.stride()}, {self._constant(like.dtype)})"

    def _root(self, tensor: Tensor, name: str, root: Tensor) -> None:
        self._roots.setdefault(id(tensor), (name, root))
        self._kept.append(tensor)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def _argument(self, value: Any) -> str:
        if value is STREAM:
            return "s"
        if isinstance(value, Addressed):
            like = copy.copy(value)
            del like.tensor  # it would live as long as the replay: a call's tensors for every shape that was ever seen
            return f"{self._constant(like.at)}({self._argument(value.tensor)})"
        if isinstance(value, Tensor):
            if id(value) not in self._roots:  # it may hold what depends on this call's pointers
                self.why = self.why or "the launcher keeps a tensor of its own"
                return ""
            if not value.numel():  # it lies nowhere, also a part of what lies somewhere
                return "0"
            name, root = self._roots[id(value)]
            offset = value.data_ptr() - root.data_ptr()
            return f"{name}.data_ptr() + {offset}" if offset else f"{name}.data_ptr()"
        if isinstance(value, tuple) and any(isinstance(v, (Tensor, Addressed)) or v is STREAM for v in value):
            return f"({', '.join(map(self._argument, value))},)"
        return repr(value) if value is None or type(value) in (int, bool) else self._constant(value)

    def _operand(self, value: Any) -> str:
        """Of what PyTorch computes: a tensor, or a view of one as it was taken."""
        if not isinstance(value, Tensor):
            return repr(value) if value is None or type(value) in (int, bool) else self._constant(value)
        if id(value) not in self._roots:
            self.why = self.why or "the launcher computes with a tensor of its own"
            return ""
        name, root = self._roots[id(value)]
        self._shapeless.pop(name, None)
        if value is root:
            return name
        if value.dtype != root.dtype:
            self.why = self.why or "it computes with other numbers than it was given"
        beyond = value.storage_offset() - root.storage_offset()
        at = f", {name}.storage_offset() + {beyond}" if beyond else ""
        return f"{name}.as_strided({tuple(value.shape)}, {value.stride()}{at})"

    def _result(self, tensor: Any) -> str:
        """What comes back is mostly an allocation, all of it, in some shape, and so it is allocated: a view takes as long as a quarter of a known call. (Of
        `torch.empty` it is one of the same shape, as PyTorch tells a mode of a detach behind it.)"""
        if tensor is None:
            return "None"
        if id(tensor) not in self._roots:
            self.why = self.why or "a result comes from nowhere"
            return ""
        name, root = self._roots[id(tensor)]
        line = self._shapeless.pop(name, None)
        if line is not None and places.reach(tensor) == tensor.nbytes == root.nbytes:
            self.lines[line] = f"{name} = {self._empty(tensor)}"
            self._reshaped.add(name)
            return name
        if tensor is root and name not in self._reshaped:
            return name
        if name in self.parameters:
            self.why = self.why or "a result is a view of an argument"
        if tensor.dtype != root.dtype:
            self.why = self.why or "a result is a part of other numbers"
        return f"{name}.as_strided({tuple(tensor.shape)}, {tensor.stride()}, {tensor.storage_offset()})"


def record(run: Run, args: Sequence[Any], device: torch.device) -> tuple[Any, Run | None]:
    """This call's result, and what replays it (None: it is not replayable)."""
    # under autograd's view tracking the launcher would be handed another object than the recorder saw
    with torch.no_grad(), Recorder(args, device) as made:
        result = run(*args)
    return result, made.code(run, result)


class Rehearsal:
    """Plain the first time, when kernels are still compiled; recorded the second; what the third call runs goes to `remember`."""

    def __init__(self, run: Run, device: torch.device, remember: Callable[[Run], None]):
        self.run, self.device, self.remember = run, device, remember
        self.seen = False

    def __call__(self, *args: Any) -> Any:
        tensors = [id(t) for a in args for _, t in named("", a)]
        if not self.seen or len(set(tensors)) < len(tensors):
            self.seen = True
            return self.run(*args)
        result, again = record(self.run, args, self.device)
        self.remember(again or self.run)
        return result


def _are_tensors(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Tensor)


def named(name: str, value: Any) -> list[tuple[str, Tensor]]:
    """The tensors of an argument, none of a parameter."""
    if isinstance(value, Tensor):
        return [(name, value)]
    if isinstance(value, (list, tuple)):
        return [(f"{name}[{i}]", t) for i, t in enumerate(value) if isinstance(t, Tensor)]
    return []


def _platform(device: torch.device) -> dict[str, Any]:
    made: Any = torch._C._dynamo.guards
    seen = {"modes": torch._C._len_torch_dispatch_stack}
    if device.type == "cuda":
        here = {"empty": made._empty_strided_cuda, "device": torch._C._cuda_getDevice, "stream": torch._C._cuda_getCurrentRawStream}
        return seen | here
    return seen | {"empty": made._empty_strided_cpu, "device": lambda: 0, "stream": lambda index: 0}
