"""What there is, and who would be chosen."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

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


def dtype_named(name: str) -> torch.dtype:
    known = {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "fp32": torch.float32,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
    }
    return known[nearest(name, list(known), "dtype")]


def case_of(spec: OpSpec, shape: str, dtype: torch.dtype) -> Case:
    """M=4096,N=1024,causal=true -> letters and parameters of a Case."""
    letters = {letter(x)[0] for a in spec.args.values() for x in a.dims.split()} | {"M"}
    dims: dict[str, Any] = {}
    params: dict[str, Any] = {}
    for item in filter(None, shape.replace(" ", "").split(",")):
        name, sep, value = item.partition("=")
        if not sep:
            raise ValueError(f"--shape {item!r} is no LETTER=NUMBER; {spec.name} has {', '.join(sorted(letters - {'...'}))}")
        if name in letters:
            if not value.isdigit():
                raise ValueError(f"--shape {name}={value}: {value!r} is no size")
            dims[name] = int(value)
        else:
            parameter = nearest(
                name,
                [*sorted(letters - {"..."}), *(p for p in spec.signature.parameters if p not in spec.args)],
                f"letter or parameter of {spec.name}",
            )
            params[parameter] = json.loads(value)
    missing = letters - {"...", "M"} - set(dims) - set(spec.unsaid) - {x for a in spec.args.values() if a.optional for x in a.dims.split()}
    if missing and not any(a.many for a in spec.args.values()):
        raise ValueError(f"{spec.name} needs {', '.join(sorted(missing))} in --shape; it got {shape or 'nothing'}")
    return Case(dims, dtype, params)


def blank(spec: OpSpec, case: Case, device: str) -> dict[str, Any]:
    """Tensors of a case's shapes with nothing in them, for a gradient what its forward saves as well."""
    forward = spec.forward or spec
    dims = forward.letters(case)

    def make(arg: Any) -> Any:
        shapes = dims[arg.dims] if arg.many else [arg.shape(dims)]
        made = [torch.empty(s, dtype=arg.torch_dtype(case.dtype), device=device) for s in shapes]
        return made if arg.many else made[0]

    call = {**forward.defaults, **{n: make(a) for n, a in forward.args.items()}, **case.params}
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


class _Imagined:
    """What is asked of Triton's driver when a config is picked: an H200's answers."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@contextlib.contextmanager
def imagined(device: str) -> Iterator[None]:
    """Tensors of this device have no memory; where there is no GPU, an H200 is imagined."""
    with contextlib.ExitStack() as stack:
        if device == "cuda" and not torch.cuda.is_available():
            stack.enter_context(mock.patch.object(launch, "_processors", lambda device: 132))
            stack.enter_context(mock.patch.object(driver, "_active", _Imagined()))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def explain(name: str, shape: str, dtype: str, device: str) -> dict[str, Any]:
    op = operator(name)
    case = case_of(op.spec.forward or op.spec, shape, dtype_named(dtype))
    real = device != "cuda" or torch.cuda.is_available()
    with imagined(device):
        call = blank(op.spec, case, device)
        op.spec.bind(call)
        choice = op.choose(call)
        moved = op.spec.floor_bytes(call)
        operations = op.spec.operations(call)
    return {
        "operator": op.spec.name, "case": case.id, "device": device if real else f"{device} (imagined)", "chosen": choice.kernel.name,
        "config": dict(choice.config), "source": choice.source, "idea": choice.kernel.idea,
        "refused": [{"kernel": k, "why": why} for k, why in choice.refused], "bytes": moved, "operations": operations,
        "arguments": {n: f"{list(v.shape)} {str(v.dtype).removeprefix('torch.')}" for n, v in call.items() if isinstance(v, Tensor)},
    }  # fmt: skip
