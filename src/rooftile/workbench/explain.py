"""What there is, and who would be chosen."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import NoneType
from typing import Any, get_args, get_type_hints
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from rooftile.core import tune
from rooftile.core.bind import letter
from rooftile.core.kernel import OPS, Op, nearest
from rooftile.core.spec import Case, OpSpec
from rooftile.ops._shared import launch
from rooftile.workbench.check import all_ops


def operator(name: str) -> Op:
    return OPS[nearest(name, list(OPS), "operator")]


def operators() -> list[dict[str, Any]]:
    def kernels(op: Op | None) -> list[dict[str, str]]:
        return [] if op is None else [{"name": k.name, "idea": k.idea} for k in op.kernels]

    return [{"operator": op.spec.name, "kernels": kernels(op), "backward": kernels(op.backward), "signature": op.spec.schema,
             "dtypes": [str(t).removeprefix("torch.") for t in op.spec.dtypes]} for op in all_ops()]  # fmt: skip


SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def dtype_named(spec: OpSpec, name: str) -> torch.dtype:
    """One that the operator takes; bfloat16, or its first, where none is named."""
    known = {str(t).removeprefix("torch."): t for t in spec.dtypes}
    name = SHORT.get(name, name) or ("bfloat16" if "bfloat16" in known else next(iter(known)))
    return known[nearest(name, list(known), f"dtype of {spec.name}")]


def usual(spec: OpSpec) -> Mapping[str, Any]:
    """Parameters and words of the operator's first bench case."""
    return next((c for c in spec.cases if "bench" in c.use), spec.cases[0]).params


def case_of(spec: OpSpec, shape: str, dtype: torch.dtype) -> Case:
    """M=4096,N=1024,causal=true -> letters and parameters of a Case. What else must be said and is not is as in the operator's first
    bench case; a tensor that may be left out is there if its own letters are."""
    letters = {letter(x)[0] for a in spec.args.values() for x in a.dims.split()}
    rows = {"...", "M"} if "..." in letters else set()  # M is how many of them ... holds, and neither need be said
    letters |= rows
    lists = {a.dims for a in spec.args.values() if a.many}
    absent = [n for n, a in spec.args.items() if a.optional]  # may be said to be none
    words = {a.word: a.dtype.split("|") for a in spec.args.values() if a.word}
    parameters = [n for n in spec.signature.parameters if n not in spec.args]
    dims: dict[str, Any] = {}
    params: dict[str, Any] = {}
    for item in filter(None, shape.replace(" ", "").split(",")):
        name, sep, value = item.partition("=")
        if not sep:
            raise ValueError(f"--shape {item!r} is no LETTER=NUMBER; {spec.name} has {', '.join(sorted(letters - {'...'}))}")
        if name in dims or name in params:
            raise ValueError(f"--shape says {name} twice, {name}={dims.get(name, params.get(name))} and {name}={value}")
        if name in lists:
            dims[name] = tuple(tuple(_size(name, x) for x in tensor.split("x")) for tensor in value.split("+"))
        elif name == "..." in letters:
            dims[name] = tuple(_size(name, x) for x in value.split("x"))
        elif name in letters:
            dims[name] = _size(name, value)
        else:
            nearest(name, [*sorted(letters - {"..."}), *parameters, *absent, *words], f"letter or parameter of {spec.name}")
            params[name] = nearest(value, words[name], f"dtype after {name}") if name in words else _value(spec, name, value)
    if {"...", "M"} <= dims.keys() and math.prod(dims["..."]) != dims["M"]:
        raise ValueError(f"--shape says M={dims['M']}, and of ... that it holds {math.prod(dims['...'])} rows")
    needed = {x for a in spec.args.values() if not a.optional for x, _ in map(letter, a.dims.split())} - rows | lists
    missing = needed - set(dims) - set(spec.unsaid)
    if missing:
        how = f", as {min(missing)}=768x768+768 for two tensors" if missing <= lists else ""
        raise ValueError(f"{spec.name} needs {', '.join(sorted(missing))} in --shape{how}; it got {shape or 'nothing'}")
    commonly = usual(spec)
    for name in absent:
        own = {letter(x)[0] for x in spec.args[name].dims.split()} - needed - rows
        if own & dims.keys() and own - dims.keys():
            raise ValueError(f"{spec.name} needs {', '.join(sorted(own - dims.keys()))} in --shape too: {name} is [{spec.args[name].dims}]")
        there = own <= set(dims) if own else commonly.get(name, name) is not None
        if spec.args[name].many:
            params[name] = []
        elif not there:
            params.setdefault(name, None)
    params |= {n: commonly[n] for n in parameters if n not in params and n not in spec.defaults and n in commonly}
    return Case(dims, dtype, params)


def _size(name: str, value: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", value):
        raise ValueError(f"--shape {name}={value}: {value!r} is no size")
    return int(value)


WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", NoneType: "none"}


def _value(spec: OpSpec, name: str, text: str) -> Any:
    """Of a parameter, as JSON or Python write it, words without quotes; of a tensor that may be left out, none."""
    hint = get_type_hints(spec.reference)[name] if name not in spec.args else NoneType
    kinds = get_args(hint) or (hint,)
    try:
        value = json.loads({"None": "null", "none": "null"}.get(text) or (text.lower() if text in ("True", "False") else text))
    except ValueError:
        value = text
    if type(value) not in kinds and not (type(value) is int and float in kinds):
        raise ValueError(f"--shape {name}={text}: {text!r} is not {' or '.join(WORDS.get(k, str(k)) for k in kinds)}")
    return value


def blank(spec: OpSpec, case: Case, device: str) -> dict[str, Any]:
    """Tensors of a case's shapes with nothing in them, for a gradient what its forward saves as well."""
    forward = spec.forward or spec
    dims = forward.letters(case)
    leading = [n for n, a in forward.args.items() if a.dims == "..."]
    if "..." not in case.dims and leading:  # as it is drawn
        if any(a.many for a in forward.args.values()):  # a row a tensor, which is no letter
            dims["..."] = tuple(forward.args[leading[0]].make((), torch.float32, torch.Generator(), dims).shape)
        elif any("M" in a.dims.split() for a in forward.args.values()):  # whose own rows these are not: scales follow from blocks
            dims["..."] = tuple(drawn(forward, replace(case, params={**usual(forward), **case.params}), device)[leading[0]].shape)

    def make(arg: Any) -> Any:
        shapes = dims[arg.dims] if arg.many else [arg.shape(dims)]
        made = [torch.empty(s, dtype=arg.torch_dtype(case.dtype), device=device) for s in shapes]
        return made if arg.many else made[0]

    call = {**forward.defaults, **{n: make(a) for n, a in forward.given(case).items() if n not in case.params}, **case.params}
    missing = [n for n in forward.signature.parameters if n not in call]
    if missing:
        raise ValueError(f"{forward.name} needs {', '.join(missing)} too, as in --shape ...,{missing[0]}=...")
    call = {n: call[n] for n in forward.signature.parameters}
    if spec.forward is None:
        return call
    results = forward.empty_returns(call)
    call |= dict(zip(forward.returns, results if isinstance(results, tuple) else (results,)))
    call |= {f"d{n}": torch.empty_like(call[n]) for n in forward.returns}
    return {n: call[n] for n in spec.signature.parameters}


SMALL = 1 << 20  # elements


class _SmallOnesReal(TorchDispatchMode):
    """Inside PyTorch's mode of tensors without numbers: what is small, and made of such alone, has them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(isinstance(x, FakeTensor) for x in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        with contextlib.suppress(DynamicOutputShapeException, DataDependentOutputException):  # numbers decide, and these are there
            made = func(*args, **kwargs)
            if any(isinstance(x, Tensor) and x.numel() > SMALL for x in tree_leaves(made)):
                return made
        with _disable_current_modes():
            return func(*args, **kwargs)


def drawn(spec: OpSpec, case: Case, device: str) -> dict[str, Any]:
    """`blank`, but as the case draws its call: without what it leaves out, of the dtypes that it makes of a word of its own, and with the parameters that it
    reads off numbers, as a longest length."""
    with FakeTensorMode(allow_non_fake_inputs=True), _SmallOnesReal(), mock.patch.object(FakeTensor, "__getitem__", Tensor.__getitem__):
        call = spec.draw(case)

    def like(value: Any) -> Any:
        if isinstance(value, Tensor):
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        return [like(v) for v in value] if isinstance(value, (list, tuple)) else value

    return {n: like(v) for n, v in call.items()}


IMAGINED = "nvidia-h200"


class _Imagined:
    """What is asked of Triton's driver when a config is picked: an H200's answers."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def _view(x: Tensor, index: Any) -> Tensor:
    """x[index] of numbers and slices: PyTorch's own turns to the device first, for which it may not be built."""
    items, axis = index if isinstance(index, tuple) else (index,), 0
    for i, item in enumerate(items):
        if item is Ellipsis:
            axis = x.dim() - sum(1 for later in items[i + 1 :] if later is not None)
        elif isinstance(item, int):
            x = x.select(axis, item)
        elif item is None:
            x, axis = x.unsqueeze(axis), axis + 1
        elif isinstance(item, slice):
            x, axis = torch.ops.aten.slice.Tensor(x, axis, item.start, item.stop, item.step or 1), axis + 1
        else:
            raise TypeError(f"{item!r} as an index is no view, and here nothing has numbers")
    return x


@contextlib.contextmanager
def imagined(device: str, name: str = "") -> Iterator[None]:
    """Tensors of this device have no memory; where there is no GPU, an H200 is imagined. `name`: whose measured choices count, instead of its own."""
    with contextlib.ExitStack() as stack:
        if device == "cuda" and not torch.cuda.is_available():
            stack.enter_context(mock.patch.object(launch, "_processors", lambda device: 132))
            stack.enter_context(mock.patch.object(driver, "_active", _Imagined()))
            stack.enter_context(mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0)))
            stack.enter_context(mock.patch.object(FakeTensor, "__getitem__", _view))
            name = name or IMAGINED
        if name:
            stack.enter_context(mock.patch.object(tune, "_name", lambda where: name if where.type == "cuda" else None))
        stack.enter_context(mock.patch.object(FakeTensor, "data_ptr", lambda x: 0))  # PyTorch warns, and gives 0
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def explain(name: str, shape: str, dtype: str, device: str) -> dict[str, Any]:
    op = operator(name)
    nearest(device, ["cpu", "cuda"], "device")
    case = case_of(op.spec.forward or op.spec, shape, dtype_named(op.spec, dtype))
    real = device != "cuda" or torch.cuda.is_available()
    try:
        with imagined(device):
            call = blank(op.spec, case, device)
            op.check(call)
            choice = op.choose(call)
            moved = operations = None
            with contextlib.suppress(DynamicOutputShapeException, DataDependentOutputException):  # numbers decide: which rows, how long
                moved, operations = op.spec.floor_bytes(call), op.spec.operations(call)
    except RuntimeError as error:  # sizes that no tensor has; slices of a device that this PyTorch is built without
        raise ValueError(f"{name} with {shape} cannot be imagined on {device}: {str(error).splitlines()[0]}") from None
    return {
        "operator": op.spec.name, "case": case.id, "device": device if real else f"{device} (imagined)", "chosen": choice.kernel.name,
        "config": dict(choice.config), "source": choice.source, "idea": choice.kernel.idea,
        "refused": [{"kernel": k, "why": why} for k, why in choice.refused], "bytes": moved, "operations": operations,
        "arguments": {n: f"{list(v.shape)} {str(v.dtype).removeprefix('torch.')}" for n, v in call.items() if isinstance(v, Tensor)},
    }  # fmt: skip
