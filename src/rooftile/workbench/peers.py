"""Whom we are timed beside: PyTorch, torch.compile, and the libraries people install for the same operators.

A peer is a function of an operator's arguments by name, so that its gradient is what autograd makes of it. What a library does not
have it is not asked for; a library that is not installed is an error with the sentence that says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from rooftile.core.spec import Case, OpSpec

Run = Callable[[], Any]
Function = Callable[..., Any]
PACKAGES = {"liger": "liger-kernel", "quack": "quack-kernels", "fa4": "flash-attn-4"}  # what pip calls them
PEERS = ("torch", "compile", *PACKAGES)


def _liger_layernorm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return _module("liger_kernel.ops.layer_norm").LigerLayerNormFunction.apply(x, weight, bias, eps)


def _liger_rmsnorm(x: Any, weight: Any, eps: float, offset: float) -> Any:
    return _module("liger_kernel.ops.rms_norm").LigerRMSNormFunction.apply(x, weight, eps, offset, "gemma" if offset else "llama", False)


def _liger_softmax(x: Any) -> Any:
    return _module("liger_kernel.ops.softmax").LigerSoftmaxFunction.apply(x)


def _liger_swiglu(gate: Any, up: Any) -> Any:
    return _module("liger_kernel.ops.swiglu").LigerSiLUMulFunction.apply(*_two("Liger", gate, up))


def _liger_geglu(gate: Any, up: Any, approximate: str) -> Any:
    if approximate != "tanh":
        raise NotImplementedError(f"Liger has GELU's tanh form alone, the case wants {approximate}")
    return _module("liger_kernel.ops.geglu").LigerGELUMulFunction.apply(*_two("Liger", gate, up))


def _two(library: str, gate: Any, up: Any) -> tuple[Any, Any]:
    if up is None:
        raise NotImplementedError(f"{library} takes gate and up as two tensors, the case has one of [..., {gate.shape[-1]}]")
    return gate, up


def _quack_softmax(x: Any) -> Any:
    return _module("quack.softmax").softmax(x)


def _quack_rmsnorm(x: Any, weight: Any, eps: float, offset: float) -> Any:
    if offset:
        raise NotImplementedError(f"quack adds nothing to the weight, the case wants {offset}")
    return _module("quack.rmsnorm").rmsnorm(x, weight, eps=eps)


def _quack_cross_entropy(logits: Any, target: Any, ignore_index: int, reduction: str, **extras: float) -> Any:
    if any(extras.values()):
        raise NotImplementedError(f"quack has none of {', '.join(f'{n} {v}' for n, v in extras.items() if v)}")
    return _module("quack.cross_entropy").cross_entropy(logits, target, ignore_index=ignore_index, reduction=reduction)


def _quack_gemm(a: Any, b: Any, bias: Any = None) -> Any:
    return _module("quack.gemm_interface").gemm(a, b, bias=bias)


def _fa4_attention(q: Any, k: Any, v: Any, causal: bool, scale: float) -> Any:
    made = _module("flash_attn.cute").flash_attn_func(q, k, v, softmax_scale=scale, causal=causal)
    return made[0] if isinstance(made, tuple) else made


LIBRARIES: dict[tuple[str, str], Function] = {
    ("liger", "layernorm"): _liger_layernorm,
    ("liger", "rmsnorm"): _liger_rmsnorm,
    # Liger's cross entropy makes the gradient in the forward, its rope turns its inputs where they lie: no figures to compare
    ("liger", "softmax"): _liger_softmax,
    ("liger", "swiglu"): _liger_swiglu,
    ("liger", "geglu"): _liger_geglu,
    ("quack", "softmax"): _quack_softmax,
    ("quack", "rmsnorm"): _quack_rmsnorm,
    ("quack", "cross_entropy"): _quack_cross_entropy,
    ("quack", "gemm"): _quack_gemm,
    ("fa4", "attention"): _fa4_attention,
}


def _torch_dropout(x: Any, seed: Any, p: float) -> Any:
    return F.dropout(x, p)


def _torch_dropout_add_norm(x: Any, residual: Any, weight: Any, bias: Any, seed: Any, p: float, eps: float, norm: str) -> Any:
    total = F.dropout(x, p) + residual
    same = weight is None or weight.dtype == total.dtype
    row = total if same else total.float()  # CUDA's layer_norm refuses mixed dtypes
    if norm == "layer":
        return F.layer_norm(row, row.shape[-1:], weight, bias, eps).to(x.dtype), total
    out = F.rms_norm(row, row.shape[-1:], weight, eps)
    return (out if bias is None else out + bias).to(x.dtype), total


# PyTorch's way to what draws random numbers: it draws others, so it is timed and nobody is held to its result.
DRAWING: dict[str, Function] = {"dropout": _torch_dropout, "dropout_add_norm": _torch_dropout_add_norm}


def function(name: str, spec: OpSpec) -> Function | None:
    """How this peer computes the operator, or None where it does not have it. `spec` is a forward's."""
    plain = spec.peer or DRAWING.get(spec.name)
    if name == "torch" or plain is None:
        return plain
    if name == "compile":
        torch._dynamo.reset()
        torch._functorch.config.donated_buffer = False  # the graph is walked more than once
        return torch.compile(plain, dynamic=False)
    return LIBRARIES.get((name, spec.name))


def own_run(spec: OpSpec, case: Case, call: dict[str, Any], where: torch.device) -> Run | None:
    """PyTorch's own on the same inputs, whose result everyone timed is held to; None where there is none to be held to."""
    return None if (spec.forward or spec).peer is None else peer_run("torch", spec, case, call, where)


def peer_run(name: str, spec: OpSpec, case: Case, call: dict[str, Any], where: torch.device) -> Run | None:
    """This peer on the same inputs; of a gradient, the backward alone of a graph that is kept."""
    forward = spec.forward or spec
    if spec.forward is not None and forward.backward is not None and forward.backward.identity:
        return None
    compute = function(name, forward)
    if compute is None:
        return None
    if spec.forward is None:
        return lambda: compute(**call)
    inputs = forward.draw(case, 0, where)
    assert forward.backward is not None
    leaves = {n: inputs[n].detach().requires_grad_() for n in forward.backward.leaves if inputs[n] is not None}
    with torch.enable_grad():
        made = compute(**{**inputs, **leaves})
    out, targets = made if isinstance(made, tuple) else (made,), list(leaves.values())
    upstream = [call[f"d{n}"].to(t.dtype) for t, n in zip(out, forward.returns)]
    # a gradient that is a view of another tensor has not been computed yet
    return lambda: [g.contiguous() for g in torch.autograd.grad(out, targets, upstream, retain_graph=True)]


def copy_run(moved: int, where: torch.device) -> Run:
    """PyTorch's copy of half as many bytes: it reads and writes `moved` in all."""
    source = torch.empty(max(1, moved // 2), dtype=torch.uint8, device=where).random_()
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        library = next(p for p in PACKAGES if name.startswith((p, "flash_attn" if p == "fa4" else p)))
        raise RuntimeError(f"{name} cannot be imported ({error}); pip install {PACKAGES[library]}") from error
