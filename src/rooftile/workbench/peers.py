"""Whom we are timed beside: PyTorch, torch.compile, and the libraries people install for the same operators.

A peer is a function of an operator's arguments by name, so that its gradient is what autograd makes of it. What a library does not
have it is not asked for; a library that is not installed is an error with the sentence that says so.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.weak import WeakIdKeyDictionary

from rooftile.core.spec import Case, OpSpec
from rooftile.ops.attention.masks import distinct

Run = Callable[[], Any]
Function = Callable[..., Any]
PACKAGES = {
    "liger": "liger-kernel",
    "quack": "quack-kernels",
    "fa4": "flash-attn-4",
    "flex": "torch",
    "fa2": "torch",
}  # what pip calls them
PYTHON = {
    "liger": "liger_kernel",
    "quack": "quack",
    "fa4": "flash_attn.cute",
    "flex": "torch.nn.attention.flex_attention",
    "fa2": "torch.nn.attention",
}  # what Python does
PEERS = ("torch", "compile", *PACKAGES)


def _liger_layernorm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return _module("liger_kernel.ops.layer_norm").LigerLayerNormFunction.apply(x, weight, bias, eps)


def _liger_rmsnorm(x: Any, weight: Any, eps: float, offset: float) -> Any:
    return _module("liger_kernel.ops.rms_norm").LigerRMSNormFunction.apply(x, weight, eps, offset, "gemma" if offset else "llama", False)


def _liger_add_rmsnorm(x: Any, residual: Any, weight: Any, eps: float, offset: float) -> Any:
    run = _module("liger_kernel.ops.fused_add_rms_norm").LigerFusedAddRMSNormFunction.apply
    return run(x, residual, weight, eps, offset, "gemma" if offset else "llama", False)


def _liger_softmax(x: Any) -> Any:
    return _module("liger_kernel.ops.softmax").LigerSoftmaxFunction.apply(x)


def _liger_swiglu(gate: Any, up: Any) -> Any:
    return _module("liger_kernel.ops.swiglu").LigerSiLUMulFunction.apply(*_two("Liger", gate, up))


def _liger_geglu(gate: Any, up: Any, approximate: str) -> Any:
    if approximate != "tanh":
        raise NotImplementedError(f"Liger has GELU's tanh form alone, the case wants {approximate}")
    return _module("liger_kernel.ops.geglu").LigerGELUMulFunction.apply(*_two("Liger", gate, up))


def _liger_gated_mlp(x: Any, weight1: Any, weight2: Any, activation: str, residual: Any) -> Any:
    """As its module does it: a product for gate, one for up."""
    if activation != "silu":
        raise NotImplementedError(f"Liger's gated MLP of silu is compared, the case wants {activation}")
    linear, (gate, up) = torch.nn.functional.linear, weight1.chunk(2)
    out = linear(_liger_swiglu(linear(x, gate), linear(x, up)), weight2)
    return out if residual is None else out + residual


def _two(library: str, gate: Any, up: Any) -> tuple[Any, Any]:
    if up is None:
        raise NotImplementedError(f"{library} takes gate and up as two tensors, the case has one of [..., {gate.shape[-1]}]")
    return gate, up


def _quack_softmax(x: Any) -> Any:
    return _module("quack.softmax").softmax(x)


def _quack_rmsnorm(x: Any, weight: Any, eps: float, offset: float) -> Any:
    return _module("quack.rmsnorm").rmsnorm(x, weight, eps=eps, weight_offset=offset)


def _quack_add_rmsnorm(x: Any, residual: Any, weight: Any, eps: float, offset: float) -> Any:
    run = _module("quack.rmsnorm").rmsnorm
    return run(x, weight, residual=residual, residual_dtype=residual.dtype, eps=eps, prenorm=True, weight_offset=offset)


class _QuackLayerNorm(torch.autograd.Function):
    """quack has both passes, and no function of them."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        out, rstd, mean = _module("quack.rmsnorm").layernorm_fwd(x, weight, bias, eps, return_rstd=True, return_mean=True)
        ctx.save_for_backward(x, weight, rstd, mean)
        ctx.has_bias = bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        x, weight, rstd, mean = ctx.saved_tensors
        return *_module("quack.rmsnorm").layernorm_bwd(x, weight, dout, rstd, mean, ctx.has_bias), None


_widened = WeakIdKeyDictionary()


def _wide(parameter: Any) -> Any:
    """In float32, widened once: that is not what is timed."""
    if parameter is None or parameter.dtype == torch.float32:
        return parameter
    if parameter not in _widened:
        _widened[parameter] = parameter.float()
    return _widened[parameter]


def _quack_layernorm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    if weight is None:
        raise NotImplementedError("quack's LayerNorm has a weight, the case has none")
    if not x.requires_grad:
        return _module("quack.rmsnorm").layernorm_fwd(x, _wide(weight), _wide(bias), eps)
    if weight.dtype != torch.float32:
        raise NotImplementedError(f"quack's LayerNorm makes gradients of float32 weights, the case's are {weight.dtype}")
    return _QuackLayerNorm.apply(x, weight, bias, eps)


def _quack_rope(q: Any, k: Any, cos: Any, sin: Any, positions: Any, interleaved: bool) -> Any:
    if positions is not None:
        raise NotImplementedError("quack's rotary embedding takes no positions of single tokens, which the case has")
    turned = _module("quack.rotary").apply_rotary_emb
    return tuple(turned(x, cos, sin, interleaved) for x in (q, k))


def _quack_cross_entropy(logits: Any, target: Any, ignore_index: int, reduction: str, **extras: float) -> Any:
    if any(extras.values()):
        raise NotImplementedError(f"quack has none of {', '.join(f'{n} {v}' for n, v in extras.items() if v)}")
    return _module("quack.cross_entropy").cross_entropy(logits, target, ignore_index=ignore_index, reduction=reduction)


def _quack_gemm(a: Any, b: Any, bias: Any = None) -> Any:
    return _module("quack.gemm_interface").gemm(a, b, bias=bias)


def _fa4_attention(q: Any, k: Any, v: Any, causal: bool, scale: float) -> Any:
    made = _module("flash_attn.cute").flash_attn_func(q, k, v, softmax_scale=scale, causal=causal)
    return made[0] if isinstance(made, tuple) else made


def _lacks(library: str, **given: Any) -> None:
    lacking = [n for n, x in given.items() if x is not None and not (isinstance(x, float) and x == 0)]
    if lacking:
        raise NotImplementedError(f"{library} has no {', '.join(lacking)}, which the case wants")


def _fa4_rules(scale: float, left: int, right: int, softcap: float, sinks: Any) -> dict[str, Any]:
    given = {"softcap": softcap or None, "learnable_sink": sinks}
    seen = {"causal": right == 0} if left < 0 and right <= 0 else {"window_size": tuple(None if x < 0 else x for x in (left, right))}
    return {"softmax_scale": scale, **seen, **{n: x for n, x in given.items() if x is not None}}


def _fa4_attention_options(q: Any, k: Any, v: Any, sinks: Any, bias: Any, constant_bias: Any, mask: Any, seed: Any, scale: float, left: int,
                           right: int, softcap: float, p: float, deterministic: bool) -> Any:  # fmt: skip
    _lacks(
        "this use of FlashAttention-4", bias=bias, constant_bias=constant_bias, mask=mask, dropout=p, deterministic=deterministic or None
    )
    run = _module("flash_attn.cute").flash_attn_func
    made = run(q, k, v, **_fa4_rules(scale, left, right, softcap, sinks))
    return made[0] if isinstance(made, tuple) else made


def _fa4_attention_varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, sinks: Any, seed: Any, max_seqlen_q: int,
                          max_seqlen_k: int, scale: float, left: int, right: int, softcap: float, p: float, deterministic: bool) -> Any:  # fmt: skip
    _lacks("this use of FlashAttention-4", dropout=p, deterministic=deterministic or None)
    lengths = {
        "cu_seqlens_q": cu_seqlens_q.int(),
        "cu_seqlens_k": cu_seqlens_k.int(),
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
    }
    run = _module("flash_attn.cute").flash_attn_varlen_func
    made = run(q, k, v, **lengths, **_fa4_rules(scale, left, right, softcap, sinks))
    return made[0] if isinstance(made, tuple) else made


@functools.cache
def _flex_seen(left: int, right: int, t: int, s: int, offsets: tuple[tuple[int, ...], ...], device: torch.device) -> Function:
    """Which pairs of row and key see each other. `offsets`: of sequences one behind another, or ()."""
    cu_q, cu_k = (torch.tensor(x, device=device) for x in offsets or ((0, t), (0, s)))
    row, key = torch.arange(t, device=device), torch.arange(s, device=device)
    whose_row, whose_key = torch.bucketize(row, cu_q[1:], right=True), torch.bucketize(key, cu_k[1:], right=True)
    last = row - cu_q[whose_row + 1] + cu_k[whose_row + 1]  # the key beside each query: the last beside the last

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        own = whose_row[i] == whose_key[j]
        if left >= 0:
            own = own & (j >= last[i] - left)
        return own & (j <= last[i] + right) if right >= 0 else own

    return seen


@functools.cache
def _flex_block_mask(left: int, right: int, t: int, s: int, offsets: tuple[tuple[int, ...], ...], device: torch.device) -> Any:
    """FlexAttention's mask, made once, outside what is timed."""
    if left < 0 and right < 0 and not offsets:
        return None
    flex = _module("torch.nn.attention.flex_attention")
    return flex.create_block_mask(_flex_seen(left, right, t, s, offsets, device), None, None, t, s, device=device)


_blocks = WeakIdKeyDictionary()  # of a mask that is a tensor


def _flex_blocks_of(mask: torch.Tensor, left: int, right: int) -> Any:
    """The same of a mask [B, H, T, S], in a window: what it hides whole blocks of is not walked."""
    if mask not in _blocks:
        flex = _module("torch.nn.attention.flex_attention")
        (b, h), (t, s) = distinct(mask), mask.shape[2:]
        own, window = mask[:b, :h], _flex_seen(left, right, t, s, (), mask.device)

        def seen(i_b: Any, i_h: Any, i: Any, j: Any) -> Any:
            return own[i_b if b > 1 else 0, i_h if h > 1 else 0, i, j] & window(i_b, i_h, i, j)

        _blocks[mask] = flex.create_block_mask(seen, b if b > 1 else None, h if h > 1 else None, t, s, device=mask.device)
    return _blocks[mask]


def _compiled(run: Function) -> Function:
    """Compiled by this process alone: most was compiled ahead, by others side by side, and for workers of its own Inductor waits at the end, up to 300 s."""
    from torch._inductor import config

    config.compile_threads = 1
    return torch.compile(run, dynamic=False)


@functools.cache
def _flex(on_gpu: bool) -> Function:
    flex = _module("torch.nn.attention.flex_attention")

    def run(q: Any, k: Any, v: Any, sinks: Any, **rules: Any) -> Any:
        if sinks is None:
            return flex.flex_attention(q, k, v, **rules)
        out, beside = flex.flex_attention(q, k, v, return_aux=flex.AuxRequest(lse=True), **rules)
        share = torch.sigmoid(beside.lse - sinks[:, None].float())  # a sink takes the rest of each row's sum
        return (out * share[..., None]).to(out.dtype)

    return _compiled(run) if on_gpu else run


def _flexed(q: Any, k: Any, v: Any, scale: float, left: int, right: int, softcap: float, offsets: tuple[tuple[int, ...], ...] = (),
            mask: Any = None, sinks: Any = None, bias: Any = None) -> Any:  # fmt: skip
    batches, of_heads = (1, 1) if bias is None else distinct(bias)

    def score(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        return score if bias is None else score + bias[b if batches > 1 else 0, h if of_heads > 1 else 0, i, j]

    block = _flex_block_mask(left, right, q.shape[1], k.shape[1], offsets, q.device) if mask is None else _flex_blocks_of(mask, left, right)
    heads = (x.transpose(1, 2) for x in (q, k, v))
    made, gqa = score if softcap or bias is not None else None, q.shape[2] != k.shape[2]
    return _flex(q.is_cuda)(*heads, sinks, score_mod=made, block_mask=block, scale=scale, enable_gqa=gqa).transpose(1, 2)


def _fa2_attention(q: Any, k: Any, v: Any, causal: bool, scale: float) -> Any:
    """PyTorch's own FlashAttention-2, which others of its kernels may be chosen before."""
    if causal and q.shape[1] != k.shape[1]:
        raise NotImplementedError(
            f"PyTorch's FlashAttention-2 counts from the first key, the case from the last: {q.shape[1]} queries, {k.shape[1]} keys"
        )
    if v.shape[3] != q.shape[3]:
        raise NotImplementedError(f"PyTorch's FlashAttention-2 takes values as wide as keys, the case has {v.shape[3]} and {q.shape[3]}")
    heads = _module("torch.nn.attention")
    one, keys, values = (x.transpose(1, 2) for x in (q, k, v))
    with heads.sdpa_kernel(heads.SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(
            one, keys, values, is_causal=causal, scale=scale, enable_gqa=q.shape[2] != k.shape[2]
        ).transpose(1, 2)


def _flex_attention(q: Any, k: Any, v: Any, causal: bool, scale: float) -> Any:
    return _flexed(q, k, v, scale, -1, 0 if causal else -1, 0.0)


def _flex_attention_options(q: Any, k: Any, v: Any, sinks: Any, bias: Any, constant_bias: Any, mask: Any, seed: Any, scale: float, left: int,
                            right: int, softcap: float, p: float, deterministic: bool) -> Any:  # fmt: skip
    _lacks("this use of FlexAttention", dropout=p)
    return _flexed(q, k, v, scale, left, right, softcap, mask=mask, sinks=sinks, bias=constant_bias if bias is None else bias)


_told = WeakIdKeyDictionary()  # offsets on the host, asked for once: waiting for the device is not what is timed


def _flex_attention_varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, sinks: Any, seed: Any, max_seqlen_q: int,
                           max_seqlen_k: int, scale: float, left: int, right: int, softcap: float, p: float, deterministic: bool) -> Any:  # fmt: skip
    _lacks("this use of FlexAttention", dropout=p)
    for cu in (cu_seqlens_q, cu_seqlens_k):
        if cu not in _told:
            _told[cu] = tuple(cu.tolist())
    offsets = (_told[cu_seqlens_q], _told[cu_seqlens_k])
    return _flexed(q[None], k[None], v[None], scale, left, right, softcap, offsets, sinks=sinks)[0]


def _liger_linear_cross_entropy(x: Any, weight: Any, target: Any, bias: Any, ignore_index: int, label_smoothing: float, z_loss: float,
                                softcap: float, reduction: str, chunk: int | None, sums: str = "float32") -> Any:  # fmt: skip
    run = _module("liger_kernel.ops.fused_linear_cross_entropy").LigerFusedLinearCrossEntropyFunction.apply
    made = run(x, weight, target, bias, None, ignore_index, z_loss, label_smoothing, reduction, softcap or None)
    return made[0] if isinstance(made, tuple) else made


LIBRARIES: dict[tuple[str, str], Function] = {
    ("liger", "layernorm"): _liger_layernorm,
    ("liger", "rmsnorm"): _liger_rmsnorm,
    ("liger", "add_rmsnorm"): _liger_add_rmsnorm,
    # Liger's cross entropy makes the gradient in the forward, its rope turns its inputs where they lie: no figures to compare
    ("liger", "softmax"): _liger_softmax,
    ("liger", "linear_cross_entropy_ahead"): _liger_linear_cross_entropy,
    ("liger", "linear_cross_entropy_frozen"): _liger_linear_cross_entropy,
    ("liger", "swiglu"): _liger_swiglu,
    ("liger", "gated_mlp"): _liger_gated_mlp,
    ("liger", "geglu"): _liger_geglu,
    ("quack", "softmax"): _quack_softmax,
    ("quack", "rmsnorm"): _quack_rmsnorm,
    ("quack", "add_rmsnorm"): _quack_add_rmsnorm,
    ("quack", "layernorm"): _quack_layernorm,
    ("quack", "rope"): _quack_rope,
    ("quack", "cross_entropy"): _quack_cross_entropy,
    ("quack", "gemm"): _quack_gemm,
    ("fa4", "attention"): _fa4_attention,
    ("fa4", "attention_options"): _fa4_attention_options,
    ("fa4", "attention_varlen"): _fa4_attention_varlen,
    ("fa2", "attention"): _fa2_attention,
    ("flex", "attention"): _flex_attention,
    ("flex", "attention_options"): _flex_attention_options,
    ("flex", "attention_varlen"): _flex_attention_varlen,
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


def _foreach_adamw(params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, masters: Any, hyper: Any, scale: Any, seed: Any, beta1: float,
                   beta2: float, eps: float) -> None:  # fmt: skip
    from torch.optim.adamw import adamw  # here: where a release has it no more, one peer is missing and no other

    _lacks("PyTorch's AdamW", masters=masters or None, seed=seed, scale=scale)
    steps = [torch.full((), 2.0, device=hyper.device) for _ in params]  # it counts one on
    adamw(params, grads, exp_avgs, exp_avg_sqs, [], steps, foreach=True, capturable=True, amsgrad=False, beta1=beta1, beta2=beta2, lr=1e-2,
          weight_decay=0.1, eps=eps, maximize=False)  # fmt: skip


def _foreach_adamw_measured(grads: Any, **rest: Any) -> Any:
    norm = torch.nn.utils.get_total_norm(grads)
    _foreach_adamw(grads=grads, **rest)
    return norm


# What people compile, where that is another function of PyTorch's than the one they call: Inductor cannot trace the fused AdamW.
COMPILABLE: dict[str, Function] = {"adamw": _foreach_adamw, "adamw_measured": _foreach_adamw_measured}


# Whose forward makes the gradients: it is timed with the scaling that is left, a peer beside it forward and backward, and beside the scaling alone nobody is.
AHEAD = ("linear_cross_entropy_ahead", "linear_cross_entropy_frozen")


def function(name: str, spec: OpSpec) -> Function | None:
    """How this peer computes the operator, or None where it does not have it. `spec` is a forward's."""
    plain = spec.peer or DRAWING.get(spec.name)
    if name == "torch" or plain is None:
        return plain
    if name == "compile":
        torch._dynamo.reset()
        torch._functorch.config.donated_buffer = False  # the graph is walked more than once
        return _compiled(COMPILABLE.get(spec.name, plain))
    return LIBRARIES.get((name, spec.name))


def own_run(spec: OpSpec, case: Case, call: dict[str, Any], where: torch.device) -> Run | None:
    """PyTorch's own on the same inputs, whose result everyone timed is held to; None where there is none to be held to."""
    return None if (spec.forward or spec).peer is None else peer_run("torch", spec, case, call, where)


def peer_run(name: str, spec: OpSpec, case: Case, call: dict[str, Any], where: torch.device) -> Run | None:
    """This peer on the same inputs; of a gradient, the backward alone of a graph that is kept."""
    forward = spec.forward or spec
    if spec.forward is not None and forward.backward is not None and (forward.backward.identity or forward.name in AHEAD):
        return None
    compute = function(name, forward)
    if compute is None:
        return None
    if spec.name in AHEAD:
        return _both_ways(compute, spec, call)
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


def _both_ways(compute: Function, spec: OpSpec, call: dict[str, Any]) -> Run:
    """Forward and backward; the loss is what it is held to."""
    assert spec.backward is not None
    leaves = {n: call[n].detach().requires_grad_() for n in spec.backward.leaves if call[n] is not None}

    def run() -> Any:
        with torch.enable_grad():
            loss = compute(**{**call, **leaves})
            torch.autograd.grad(loss, list(leaves.values()))
        return loss.detach()

    return run


def copy_run(moved: int, where: torch.device) -> Run:
    """PyTorch's copy of half as many bytes: it reads and writes `moved` in all."""
    source = torch.empty(max(1, moved // 2), dtype=torch.uint8, device=where).random_()
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def importable(name: str) -> str:
    """`name`, a peer; one whose library is not here would be an error beside every case, after minutes."""
    if name in PYTHON:
        try:
            _module(PYTHON[name])
        except RuntimeError as error:
            raise ValueError(f"peer {name}: {error}") from error
    return name


def _module(name: str) -> Any:
    os.environ.setdefault(
        "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1"
    )  # what it compiles outlives the process; the others' does by themselves
    try:
        return importlib.import_module(name)
    except ImportError as error:
        library = next(p for p, module in PYTHON.items() if name.startswith(module))
        raise RuntimeError(f"{name} cannot be imported ({error}); pip install {PACKAGES[library]}") from error
