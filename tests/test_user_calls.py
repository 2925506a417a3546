"""What people do to an operator besides calling it rightly: each is told in one sentence, or right."""

import ast
import inspect
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode

import rooftile
from rooftile.core.kernel import OPS
from rooftile.patching.again import linear_of

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([1, 2, 0, 3])


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: rooftile.softmax([1.0, 2.0]), "softmax: x must be a tensor, got list"),
        (lambda: rooftile.vector_add(X, 1.0), "vector_add: y must be a tensor, got float"),
        (lambda: rooftile.layernorm(X, 3), "layernorm: weight must be a tensor, got int"),
        (lambda: rooftile.softmax(torch.tensor(1.0)), r"softmax: x has 0 axes \[\], needs at least 1 \[\.\.\. N\]"),
        (lambda: rooftile.transpose(X[0]), r"transpose: x has 1 axes \[8\], needs at least 2"),
        (lambda: rooftile.gelu(X.to_sparse()), "gelu: x is sparse_coo, takes strided"),
        (lambda: rooftile.gelu(torch.nested.nested_tensor([X, X])), "gelu: x is nested, takes strided"),
        (lambda: rooftile.quantize(torch.nested.nested_tensor([X, X])), "quantize: x is nested, takes strided"),
        (
            lambda: rooftile.linear_cross_entropy(torch.nested.nested_tensor([X, X]), X, X),
            "linear_cross_entropy: x is nested, takes strided",
        ),
        (lambda: rooftile.attention_decode(torch.nested.nested_tensor([X, X]), X, X, X), "attention_decode: q is nested, takes strided"),
        (lambda: rooftile.attention(*[torch.nested.nested_tensor([X, X])] * 3), "attention: q is nested, takes strided"),
        (lambda: rooftile.scaled_dot_product_attention(*[torch.nested.nested_tensor([X, X])] * 3), "query is nested, takes strided"),
        (lambda: rooftile.layernorm(X, eps="a"), "layernorm: eps is 'a', takes float"),
        (lambda: rooftile.attention(*[torch.randn(1, 4, 2, 16)] * 3, causal="yes"), "attention: causal is 'yes', takes bool"),
        (lambda: rooftile.attention(*[torch.randn(1, 4, 2, 16)] * 3, causal=2), "attention: causal is 2, takes bool"),
        (lambda: rooftile.softmax(X.numpy()), "softmax: x must be a tensor, got ndarray"),
        (
            lambda: rooftile.cross_entropy(X, torch.zeros(4).long(), label_smoothing="a"),
            "cross_entropy: label_smoothing is 'a', takes float",
        ),
        (
            lambda: rooftile.grad_norm([X.clone().requires_grad_()]),
            "grad_norm has no gradient, and grads requires one: call it under torch",
        ),
        (lambda: rooftile.attention(*[torch.zeros(())] * 3), r"attention: q has 0 axes \[\]"),
        (lambda: rooftile.attention([1], X, X), "attention: q must be a tensor, got list"),
        (lambda: rooftile.attention(*[torch.zeros(1, 4, 2, 16)] * 3, window=(1, 0), softcap=None), "softcap is None, takes float"),
        (lambda: rooftile.attention(*[torch.zeros(1, 4, 2, 16)] * 3, dropout_p="a"), "p is 'a', takes float"),
        (lambda: rooftile.attention_qkvpacked(torch.zeros(())), "qkv has 0 axes"),
        (lambda: rooftile.softmax([1.0], scale=2.0), "softmax: x must be a tensor, got list"),
        (lambda: rooftile.softmax(X, mask=[True]), "softmax: mask must be a tensor, got list"),
        (lambda: rooftile.rope(None, None, X, X), "rope: q must be a tensor, got NoneType"),
        (lambda: rooftile.rope_table(4.5, 4), "rope_table: length is 4.5, takes int"),
        (lambda: rooftile.rope_table(4, "4"), "rope_table: rotary_dim is '4', takes int"),
        (lambda: rooftile.rotary_attention(X.numpy(), X, X), "rotary_attention: qkv must be a tensor, got ndarray"),
        (lambda: rooftile.scaled_dot_product_attention(X, X, X, is_causal="no"), "is_causal is 'no', takes bool"),
        (lambda: rooftile.scaled_dot_product_attention(X, X, X, None, 0.0, False, None, X), r"enable_gqa is a tensor \[4, 8\], takes bool"),
        (lambda: rooftile.scaled_dot_product_attention(X, X, X, attn_mask=True), "attn_mask must be a tensor, got bool"),
        (lambda: rooftile.attention([1], X, X, window=(1, 0)), "attention: q must be a tensor, got list"),
        (lambda: rooftile.attention(X, X, X, mask=X > 0), r"attention: q has 2 axes \[4, 8\], needs 4 \[B T H D\]"),
        (lambda: rooftile.attention_decode(X, None, X, X), "attention_decode: k_cache must be a tensor, got NoneType"),
        (lambda: rooftile.concat_kv(X, X, X, 1.0, X), "concat_kv: v must be a tensor, got float"),
        (lambda: rooftile.residual_add(X, X.clone(), inplace="no"), "residual_add: inplace is 'no', takes bool"),
        (lambda: rooftile.rope(X.view(1, 1, 4, 8), None, X, X, inplace="no"), "rope: inplace is 'no', takes bool"),
        (lambda: rooftile.residual_add(X, 1.0, inplace=True), "residual_add: residual must be a tensor, got float"),
        (lambda: rooftile.cross_entropy([1], X, inplace_backward=True), "cross_entropy: logits must be a tensor, got list"),
        (lambda: rooftile.linear_cross_entropy(X, "w", X), "linear_cross_entropy: weight must be a tensor, got str"),
        (lambda: rooftile.tied_embedding(X, None), "tied_embedding: weight must be a tensor, got NoneType"),
        (lambda: rooftile.stream_layernorm(X, 1.0), "stream_layernorm: weight must be a tensor, got float"),
        (lambda: rooftile.stream_rmsnorm(None), "stream_rmsnorm: x must be a tensor, got NoneType"),
        (lambda: rooftile.adamw([X], None, [X], [X], X), "adamw: grads must be a list of tensors, got NoneType"),
        (lambda: rooftile.adamw([X], [X], [X], [X], X, masters=3.5), "adamw: masters must be a list of tensors, got float"),
        (lambda: rooftile.grad_norm(None), "grad_norm: grads must be a list of tensors, got NoneType"),
        (lambda: rooftile.adamw([X], [X], X, [X], X), "adamw: exp_avgs must be a list of tensors, got Tensor"),
        (lambda: rooftile.quantize(None), "quantize: x must be a tensor, got NoneType"),
        (lambda: rooftile.mlp(None, X.clone().requires_grad_(), None, X, None), "mlp: x must be a tensor, got NoneType"),
        (lambda: rooftile.mlp(X.clone().requires_grad_(), "w", None, X, None), "mlp: weight1 must be a tensor, got str"),
        (lambda: rooftile.LayerNorm(8)(None), "layernorm: x must be a tensor, got NoneType"),
        (lambda: rooftile.RMSNorm(8)([1.0]), "rmsnorm: x must be a tensor, got list"),
        (lambda: rooftile.MultiheadAttention(8, 2)(X, X, None), "MultiheadAttention: value must be a tensor, got NoneType"),
        (lambda: rooftile.MultiheadAttention(8, 2)(X, X, X, attn_mask=[True]), "MultiheadAttention: attn_mask must be a tensor, got list"),
        (lambda: rooftile.CrossEntropyLoss()(X, [1]), "cross_entropy: target must be a tensor, got list"),
        (lambda: rooftile.scan(X, -1), "scan: exclusive is -1, takes bool"),  # torch.cumsum's dim
        (lambda: rooftile.scan(X, X), r"scan: exclusive is a tensor \[4, 8\], takes bool"),
        (lambda: rooftile.gated_mlp(X, X, X, X), r"gated_mlp: activation is a tensor \[4, 8\], takes str"),
        (lambda: rooftile.scan(X, reverse="no"), "scan: reverse is 'no', takes bool"),
        (lambda: rooftile.dropout(X, "a"), "dropout: p is 'a', takes float"),
        (lambda: rooftile.dropout_add_norm(X, X, p=None), "dropout_add_norm: p is None, takes float"),
        (lambda: rooftile.Dropout("a"), "dropout: p is 'a', takes float"),
        (lambda: rooftile.attention(*[torch.zeros(1, 4, 2, 16)] * 3, window=("a", 0)), "attention: the window's left is 'a', takes int"),
        (lambda: rooftile.rope_table(4, 4, "a"), "rope_table: base is 'a', takes float"),
        (lambda: rooftile.AdamW([X.clone()], lr="a"), "AdamW: lr is 'a', must be a number or a tensor of one"),
        (lambda: rooftile.AdamW([X.clone()], betas=("a", 0.9)), r"AdamW: betas are \('a', 0.9\), both must be"),
        (lambda: rooftile.AdamW([X.clone()], max_norm="a"), "AdamW: max_norm is 'a', must be a number or None"),
        (lambda: rooftile.CrossEntropyLoss("sum"), "CrossEntropyLoss: weight is 'sum', but class weights are not supported"),
        (lambda: rooftile.patch(None), "patch: model must be a torch.nn.Module, got NoneType"),
    ],
)
def test_wrong_input_is_a_sentence(call, sentence):
    for autocast in (False, True):
        with pytest.raises(ValueError, match=sentence), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            call()


def parameters():
    """Every number that an operator takes, its own or one that a function hands on."""
    for name, op in OPS.items():
        if not name.endswith("_backward"):
            yield from (
                pytest.param(name, n, kind, id=f"{name}-{n}") for n, kinds in op._kinds.items() for kind in (int, float) if kind in kinds
            )


@pytest.mark.parametrize("name, parameter, kind", [*parameters()])
def test_true_is_no_number_and_nan_is_none(name, parameter, kind):
    """Python counts with True, and a result of NaN has lost who made it so."""
    for value in (True, False, *((math.nan, -math.inf) if kind is float else ())):
        said = "takes a finite number" if kind is float and not isinstance(value, bool) else f"takes {kind.__name__}"
        with pytest.raises(ValueError, match=f"{name}: {parameter} is {value}, {said}"):
            OPS[name](*(OPS[name]._example | {parameter: value}).values())


Q = torch.ones(1, 4, 2, 16)


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: rooftile.embedding(Y, X, True), "embedding: padding_idx is True, takes int"),
        (lambda: rooftile.Embedding(4, 8, padding_idx=False), "embedding: padding_idx is False, takes int"),
        (lambda: rooftile.softmax(X, True), "softmax: dim is True, takes int"),
        (lambda: rooftile.LogSoftmax(False), "log_softmax: dim is False, takes int"),
        (lambda: rooftile.softmax(X, scale=math.nan), "masked_softmax: scale is nan, takes a finite number"),
        (lambda: rooftile.attention(Q, Q, Q, scale=math.inf), "attention: scale is inf, takes a finite number"),
        (lambda: rooftile.attention(Q, Q, Q, window=(0, False)), "attention: the window's right is False, takes int or None"),
        (lambda: rooftile.attention(Q, Q, Q, softcap=True), "attention_options: softcap is True, takes float"),
        (lambda: rooftile.attention(Q, Q, Q, dropout_p=True), "attention_options: p is True, takes float"),
        (lambda: rooftile.attention(Q, Q, Q, dropout_p=0.5, seed=True), "seed is True, it takes an integer"),
        (lambda: rooftile.attention(Q, Q, Q, return_lse="no"), "attention: return_lse is 'no', takes bool"),
        (lambda: rooftile.attention_decode(Q, Q, Q, torch.ones(1, dtype=torch.int32), return_lse="no"), "attention_decode: return_lse is 'no', takes bool"),
        (lambda: rooftile.cross_entropy(X, torch.zeros(4, dtype=torch.int64), inplace_backward="no"), "cross_entropy: inplace_backward is 'no', takes bool"),
        (lambda: rooftile.CrossEntropyLoss(inplace_backward=1), "cross_entropy: inplace_backward is 1, takes bool"),
        (lambda: rooftile.dropout_add_norm(X, X, training="no"), "dropout_add_norm: training is 'no', takes bool"),
        (lambda: rooftile.rope_table(True, 4), "rope_table: length is True, takes int"),
        (lambda: rooftile.rope_table(4, 4, True), "rope_table: base is True, takes float"),
        (lambda: rooftile.rope_table(4, 4, math.inf), "rope_table: base is inf, it must be above 0, and finite"),
        (lambda: rooftile.dropout(X, False), "dropout: p is False, takes float"),
        (lambda: rooftile.dropout(X, "a", training=False), "dropout: p is 'a', takes float"),
        (lambda: rooftile.dropout(X, math.nan), "dropout: p is nan, takes a finite number"),
        (lambda: rooftile.dropout(X, 0.5, "no"), "dropout: training is 'no', takes bool"),
        (lambda: rooftile.dropout(X, 0.5, seed=True), "seed is True, it takes an integer"),
        (lambda: rooftile.stream_rmsnorm(X.clone().requires_grad_(), eps=math.nan), "rmsnorm: eps is nan, takes a finite number"),
        (lambda: rooftile.LayerNorm(8, eps=math.inf), "layernorm: eps is inf, takes a finite number"),
        (lambda: rooftile.linear_cross_entropy(X, X, Y, chunk=True), "linear_cross_entropy: chunk is True, takes int or None"),
        (lambda: rooftile.MultiheadAttention(8, 2, True), "attention_options: p is True, takes float"),
        (lambda: rooftile.AdamW([X.clone()], lr=True), "AdamW: lr is True, must be a number or a tensor of one"),
        (lambda: rooftile.AdamW([X.clone()], lr=math.nan), "AdamW: lr is nan, must be at least 0, and finite"),
        (lambda: rooftile.AdamW([X.clone()], weight_decay=math.inf), "AdamW: weight_decay is inf, must be at least 0, and finite"),
        (lambda: rooftile.AdamW([X.clone()], betas=(False, 0.9)), r"AdamW: betas are \(False, 0.9\), both must be"),
        (lambda: rooftile.AdamW([X.clone()], max_norm=True), "AdamW: max_norm is True, must be a number or None"),
        (lambda: rooftile.AdamW([X.clone()], master="no"), "AdamW: master is 'no', takes bool"),
        (lambda: rooftile.AdamW([X.clone()], stochastic=1), "AdamW: stochastic is 1, takes bool"),
    ],
)  # fmt: skip
def test_a_slip_in_a_parameter_that_a_function_looks_at_is_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


@pytest.mark.parametrize("dynamic", [None, True])
def test_parameters_may_be_symbols(dynamic):
    """Of one that varies from call to call torch.compile makes a symbol, which is asked no less."""
    for f, given in (
        (lambda x, p: rooftile.dropout(x, p, seed=3), (0.5, 0.25, 0.3)),
        (rooftile.softmax, (0, 1, -1)),
        (lambda x, s: rooftile.softmax(x, scale=s), (0.5, 2.0, 3.0)),
        (lambda x, w: rooftile.attention(*[x[None, :, None]] * 3, window=(w, 0)), (1, 2, 3)),
    ):
        compiled = torch.compile(f, backend="eager", fullgraph=True, dynamic=dynamic)
        for value in given:
            assert torch.equal(compiled(X, value), f(X, value))


def test_numbers_of_numpy_are_numbers():
    numpy = pytest.importorskip("numpy")
    assert torch.equal(rooftile.layernorm(X, eps=numpy.float64(1e-5)), rooftile.layernorm(X, eps=1e-5))
    assert torch.equal(rooftile.softmax(X, numpy.int64(0)), rooftile.softmax(X, 0))
    with pytest.raises(ValueError, match="eps is nan, takes a finite number"):
        rooftile.layernorm(X, eps=numpy.float32("nan"))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", ["gelu", "layernorm", "transpose"])
def test_a_gradient_is_differentiated_once(name, autocast):
    """A second time is refused, with no constant in its place; create_graph alone changes nothing."""
    x = X.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        made = getattr(rooftile, name)(x).float().square().sum()
    (plain,) = torch.autograd.grad(made, x, retain_graph=True)
    (dx,) = torch.autograd.grad(made, x, create_graph=True)
    assert torch.equal(dx, plain)
    with pytest.raises(RuntimeError, match=f"{name}: its gradient cannot be differentiated again"):
        dx.norm().backward()


def test_a_product_of_a_factor_made_again_is_differentiated_once():
    """Where the gradient that comes in is a constant, too: there PyTorch's once_differentiable gives another constant."""
    x, weight = X.clone().requires_grad_(), torch.randn(3, 4, requires_grad=True)
    made = linear_of(rooftile.swiglu, rooftile.swiglu_again, (x,), weight, F.linear)
    (dx,) = torch.autograd.grad(made.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="its gradient cannot be differentiated again"):
        (dx.norm() + x.sum()).backward()


@pytest.mark.parametrize("autocast", [False, True])
def test_a_result_is_written_in_place(autocast):
    """As `out += x`: though a product that makes it gives a view of its rows."""
    x, weight = X.clone().requires_grad_(), torch.randn(8, 8)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for f in (lambda: rooftile.linear_add(x, weight, X), lambda: rooftile.mlp(x, weight, None, weight, None)):
            plain, out = f(), f()
            out *= 2
            (theirs,), (ours,) = (torch.autograd.grad(y.sum(), x) for y in (plain * 2, out))
            assert torch.equal(ours, theirs)


ONCE = {
    "stream_layernorm": lambda x: rooftile.stream_layernorm(x)[0],
    "stream_rmsnorm": lambda x: rooftile.stream_rmsnorm(x)[0],
    "tied_embedding": lambda x: rooftile.tied_embedding(torch.arange(4), x)[0],
}
BATCHED = {
    "stream_layernorm": lambda x: rooftile.stream_layernorm(x),
    "stream_rmsnorm": lambda x: rooftile.stream_rmsnorm(x),
    "tied_embedding": lambda x: rooftile.tied_embedding(torch.tensor([1, 1, 3]), x),
    "tied_embedding, a head alone": lambda x: rooftile.tied_embedding(torch.arange(4), x)[1:],
    "cross_entropy over the logits": lambda x: (rooftile.cross_entropy(x * 1, torch.arange(4), reduction="none", inplace_backward=True),),
    "a gated perceptron's last product": lambda x: (linear_of(rooftile.swiglu, rooftile.swiglu_again, (x, x + 1), x[:3], F.linear),),
}


@pytest.mark.parametrize("name", BATCHED)
def test_functions_around_operators_take_batches_of_gradients(name):
    """Who holds a batch of gradients nobody can say, and logits have room for one."""
    x = X.clone().requires_grad_()
    grads = [torch.stack([torch.ones_like(t), t.detach(), -t.detach()]) for t in BATCHED[name](x)]
    (at_once,) = torch.autograd.grad(BATCHED[name](x), x, grads, is_grads_batched=True)
    one_by_one = [torch.autograd.grad(BATCHED[name](x), x, [g[i] for g in grads])[0] for i in range(3)]
    torch.testing.assert_close(at_once, torch.stack(one_by_one))


@pytest.mark.parametrize("name", ONCE)
def test_functions_around_operators_are_as_operators(name):
    """Differentiated once, also where the gradient that comes in is constant; in vmap, and in torch.func's grad."""
    x = X.clone().requires_grad_()
    (dx,) = torch.autograd.grad(ONCE[name](x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=f"{name}: its gradient cannot be differentiated again"):
        (dx.norm() + x.sum()).backward()
    two = torch.vmap(ONCE[name])(torch.stack([x, 2 * x]))
    assert torch.equal(two, torch.stack([ONCE[name](x), ONCE[name](2 * x)]))
    ours = torch.func.grad(lambda t: ONCE[name](t).pow(2).sum())(X)
    torch.testing.assert_close(ours, torch.autograd.grad(ONCE[name](x).pow(2).sum(), x)[0])
    with pytest.raises(RuntimeError, match="its gradient cannot be differentiated again"):
        torch.func.grad(lambda t: torch.func.grad(lambda t: ONCE[name](t).pow(2).sum())(t).sum())(X)


def test_what_hands_gradients_on_is_differentiated_again():
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    ours, theirs = (
        torch.autograd.grad(torch.autograd.grad(f(t, t).pow(3).sum(), t, create_graph=True)[0].sum(), t)[0]
        for f, t in ((rooftile.vector_add, x), (torch.add, y))
    )
    assert torch.equal(ours, theirs)


def test_transforms():
    assert torch.equal(torch.vmap(rooftile.gelu)(X), rooftile.gelu(X))
    x = X.clone().requires_grad_()
    torch.vmap(rooftile.gelu)(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(F.gelu(x).sum(), x)[0])
    row_by_row, at_once = (torch.autograd.functional.jacobian(rooftile.gelu, X, vectorize=v) for v in (False, True))
    assert torch.equal(at_once, row_by_row)
    for transformed in (rooftile.gelu, torch.vmap(rooftile.gelu)):
        with pytest.raises(RuntimeError, match=r"no forward-mode derivatives: differentiate backward$"):
            torch.func.jvp(transformed, (X,), (X,))


W = torch.randn(8)
HEADS = torch.randn(1, 4, 2, 16)
FUNCTIONS = {  # ours, PyTorch's, and what is differentiated
    "gelu": (rooftile.gelu, F.gelu, (X,)),
    "rmsnorm": (rooftile.rmsnorm, lambda x, w: F.rms_norm(x, (8,), w, 1e-6), (X, W)),
    "add_layernorm": (rooftile.add_layernorm, lambda x, r, w: (F.layer_norm(x + r, (8,), w), x + r), (X, X + 1, W)),
    "the sum alone": (lambda x, r: rooftile.add_layernorm(x, r)[1], torch.add, (X, X + 1)),
    "identity": (rooftile.vector_add, torch.add, (X, X + 1)),
    "softmax": (rooftile.softmax, lambda x: torch.softmax(x, -1), (X,)),
    "cross_entropy": (lambda x: rooftile.cross_entropy(x, Y), lambda x: F.cross_entropy(x, Y), (X,)),
    "linear_cross_entropy": (
        lambda x, w: rooftile.linear_cross_entropy(x, w, Y),
        lambda x, w: F.cross_entropy(x @ w.t(), Y),
        (X, torch.randn(8, 8)),
    ),
    "embedding": (lambda w: rooftile.embedding(Y, w), lambda w: F.embedding(Y, w), (torch.randn(8, 8),)),
    "mlp": (
        lambda x, w, v: rooftile.mlp(x, w, None, v, None),
        lambda x, w, v: F.gelu(x @ w.t()) @ v.t(),
        (X, torch.randn(16, 8), torch.randn(8, 16)),
    ),
    "attention": (
        lambda q, k, v: rooftile.attention(q, k, v, causal=True),
        lambda *qkv: F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in qkv), is_causal=True).transpose(1, 2),
        (HEADS, HEADS + 1, HEADS * 2),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:vmap calls")
def test_of_torch_funcs_transforms_all_that_go_backward(name):
    """grad, vjp, jacrev, and vmap of grad, which is a gradient a sample: as PyTorch's own operators. Seen red: refused; jacrev alone, whose backward pass is in
    no grad any more, ended in PyTorch's words."""
    ours, theirs, given = FUNCTIONS[name]
    every = tuple(range(len(given)))

    def loss(f):
        return lambda *a: sum(y.sin().sum() for y in torch.utils._pytree.tree_leaves(f(*a)))

    def close(made, wanted):
        torch.testing.assert_close(made, wanted, atol=2e-5, rtol=2e-5)

    close(torch.func.grad(loss(ours), every)(*given), torch.func.grad(loss(theirs), every)(*given))
    close(torch.func.jacrev(ours, every)(*given), torch.func.jacrev(theirs, every)(*given))
    samples = tuple(torch.stack([t, t.flip(0), 2 * t]) for t in given)
    close(torch.vmap(torch.func.grad(loss(ours), every))(*samples), torch.vmap(torch.func.grad(loss(theirs), every))(*samples))
    close(torch.func.grad(loss(torch.vmap(ours)), every)(*samples), torch.func.grad(loss(torch.vmap(theirs)), every)(*samples))
    (y, pull), (z, other) = (torch.func.vjp(f, *given) for f in (ours, theirs))
    close(pull(y), other(z))
    for outer in (torch.func.grad, torch.func.jacrev):
        if name in ("identity", "the sum alone"):  # handed on, and differentiable as often as one likes
            break
        with pytest.raises(RuntimeError, match="its gradient cannot be differentiated again"):
            outer(lambda a: sum(g.sum() for g in torch.func.grad(loss(ours), every)(a, *given[1:])))(given[0])


def test_a_call_that_is_known_is_another_one_inside_a_transform():
    """Where it met the plain call's guards the gradient were zero, without a word."""
    for _ in range(50):
        rooftile.gelu(X)
    assert OPS["gelu"]._known.calls
    torch.testing.assert_close(torch.func.grad(lambda x: rooftile.gelu(x).sum())(X), torch.func.grad(lambda x: F.gelu(x).sum())(X))


def test_torch_funcs_grad_and_autograd_outside():
    x = X.clone().requires_grad_()
    inner = torch.func.grad(lambda t: rooftile.gelu(t).sin().sum())(x)
    with pytest.raises(RuntimeError, match="gelu: its gradient cannot be differentiated again"):
        inner.sum().backward()
    torch.func.grad(lambda w: rooftile.rmsnorm(x, w).sum())(W)  # x is a constant in there
    rooftile.rmsnorm(x, W).sum().backward()


def test_torch_funcs_grad_under_autocast():
    weight = torch.randn(3, 8)

    def loss(linear):
        return lambda x, w: linear(x, w).float().sin().sum()

    with torch.autocast("cpu", torch.bfloat16):
        made, wanted = (torch.func.grad(loss(f), (0, 1))(X, weight) for f in (rooftile.linear, F.linear))
        norms, rounded = (torch.func.grad(lambda x, f=f: f(x).sin().sum())(X) for f in (rooftile.gelu, F.gelu))
    assert [t.dtype for t in made] == [torch.float32, torch.float32]
    torch.testing.assert_close(made, wanted, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(norms, rounded)


def test_a_gradient_a_sample_of_a_model():
    model = torch.nn.Sequential(rooftile.Linear(8, 16), rooftile.RMSNorm(16), rooftile.GELU(), rooftile.MLP(16, 32), rooftile.Linear(16, 8))
    weights = {name: w.detach() for name, w in model.named_parameters()}

    def loss(weights, x, y):
        return rooftile.cross_entropy(torch.func.functional_call(model, weights, (x[None],)), y[None])

    with pytest.warns(RuntimeWarning, match="vmap calls linear_backward once a sample, 4 times"):
        made = torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, X, Y)
    for i in range(len(X)):
        one = torch.autograd.grad(rooftile.cross_entropy(model(X[i : i + 1]), Y[i : i + 1]), list(model.parameters()))
        torch.testing.assert_close([g[i] for g in made.values()], list(one))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_pytorchs_counter_of_operations_knows_operators():
    """What has no formula counts as nothing there, without a word."""
    x, weight = torch.randn(5, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
    for ours, theirs in ((rooftile.linear, F.linear), (lambda x, w: rooftile.gemm(x, w.t()), lambda x, w: x @ w.t())):
        counts = []
        for function in (ours, theirs):
            with FlopCounterMode(display=False) as forward:
                function(x, weight)
            out = function(x, weight)  # outside
            with FlopCounterMode(display=False) as backward:
                out.sum().backward()
            counts.append((forward.get_total_flops(), backward.get_total_flops()))
        assert counts[0] == counts[1] == (2 * 5 * 8 * 3, 4 * 5 * 8 * 3)


def test_a_trace_holds_operators():
    """torch.jit.trace saw what a kernel allocates and not the kernel, and its numbers of a shape (attention's scale) are tensors."""
    heads, norm = torch.randn(1, 5, 2, 16), rooftile.LayerNorm(8)
    for name, f, x in (
        ("attention", lambda x: rooftile.attention(x, x, x, causal=True), heads),
        ("attention_options", lambda x: rooftile.attention(x, x, x, window=(1, 0)), heads),
        ("layernorm", norm, X),
        ("mlp", rooftile.MLP(8, 16), X),
    ):
        made = torch.jit.trace(f, x)
        assert f"rooftile::{name}" in [node.kind() for node in made.graph.nodes()] and torch.equal(made(x + 1), f(x + 1))
    (theirs,), (ours,) = (torch.autograd.grad(g(X).square().sum(), [norm.weight]) for g in (norm, torch.jit.trace(norm, X)))
    assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_in_a_trace_a_shapes_number_is_a_number():
    """torch.jit.trace makes a tensor of it. Seen red: "causal is tensor(True), takes bool" from scaled_dot_product_attention, and of a table of as many rows as
    there are tokens "length is tensor(5), takes int"."""
    rows = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 9, 16)
    for f, given in (
        (lambda x: rooftile.scaled_dot_product_attention(x, x, x, is_causal=True), rows),
        (lambda x: rooftile.rope(x, None, *rooftile.rope_table(x.shape[2], x.shape[3])), rows),
        (
            lambda x: rooftile.attention(x, x, x, window=(x.shape[1] - 1, 0)),
            rows[:1],
        ),  # a parameter stays what it is, as PyTorch's do, and warns
    ):
        made = torch.jit.trace(f, given[0])
        for x in given:
            torch.testing.assert_close(made(x), f(x))
    with pytest.raises(ValueError, match=r"causal is a tensor .*, takes bool"):
        torch.jit.trace(lambda x: rooftile.attention(x, x, x, causal=x > 0, window=(1, 0)), torch.randn(1, 5, 2, 16))


@pytest.mark.parametrize("name", ["gelu", "softmax", "attention", "linear"])
def test_a_node_of_autograd_has_its_operators_name(name):
    """In anomaly mode, a profile and a drawn graph. Seen red: EagerBackward, whichever it was."""
    x = torch.randn(1, 4, 1, 16, requires_grad=True)
    call = {"attention": lambda: rooftile.attention(x, x, x), "linear": lambda: rooftile.linear(x, x[0, :, 0])}.get(
        name, lambda: getattr(rooftile, name)(x)
    )
    assert call().grad_fn.name() == f"rooftile_{name}Backward"
    x.data[0, 0, 0, 0] = math.nan
    said = pytest.raises(RuntimeError, match=f"'rooftile_{name}Backward' returned nan")
    with pytest.warns(UserWarning, match="Error detected in"), said, torch.autograd.detect_anomaly():
        call().sum().backward()


def test_modules_take_a_device_in_one_form():
    own = [m for n in rooftile.ops.__all__ if inspect.isclass(m := getattr(rooftile, n)) and "__init__" in vars(m)]
    given = {m.__name__: inspect.signature(m).parameters.get("device") for m in own}
    said = {n: p.annotation for n, p in given.items() if p is not None}
    assert len(said) >= 6 and set(said.values()) == {torch.device | str | int | None}, said
    assert rooftile.MLP(4, 8, device="meta").fc1.weight.is_meta


@pytest.mark.parametrize(
    "module, said",
    [
        (
            rooftile.CrossEntropyLoss(z_loss=0.1, softcap=3.0),
            "ignore_index=-100, reduction='mean', label_smoothing=0.0, z_loss=0.1, softcap=3.0, inplace_backward=False",
        ),
        (
            rooftile.LinearCrossEntropyLoss(4, 8, label_smoothing=0.1, chunk=2),
            "in_features=4, out_features=8, bias=False, ignore_index=-100, label_smoothing=0.1, z_loss=0.0, softcap=0.0, reduction='mean', chunk=2",
        ),
        (rooftile.Dropout(0.3), "p=0.3"),
        (rooftile.Embedding(4, 8, padding_idx=1), "4, 8, padding_idx=1"),
        (rooftile.GELU("tanh"), "approximate='tanh'"),
        (rooftile.GatedMLP(4, 8, activation="relu"), "activation='relu'"),
        (rooftile.LayerNorm(4, 1e-3, bias=False), "(4,), eps=0.001, elementwise_affine=True, bias=False"),
        (rooftile.LogSoftmax(1), "dim=1"),
        (
            rooftile.MultiheadAttention(4, 2, 0.1, kdim=3, batch_first=True, variant="standard"),
            "4, num_heads=2, dropout=0.1, batch_first=True, variant='standard', kdim=3",
        ),
        (rooftile.RMSNorm(4, 1e-3, offset=1.0), "(4,), eps=0.001, elementwise_affine=True, offset=1.0"),
    ],
)
def test_modules_say_what_they_are_made_with(module, said):
    assert module.extra_repr() == said


@pytest.mark.parametrize(
    "made, called",
    [
        (lambda: rooftile.GELU("foo"), lambda: rooftile.gelu(X, "foo")),
        (lambda: rooftile.MLP(8, 4, approximate=None), lambda: rooftile.mlp(X, X, None, X[:, :4], None, None)),
        (lambda: rooftile.GatedMLP(8, 2, activation="foo"), lambda: rooftile.gated_mlp(X, X, X[:, :2], "foo")),
        (lambda: rooftile.CrossEntropyLoss(reduction="foo"), lambda: rooftile.cross_entropy(X, Y, reduction="foo")),
        (lambda: rooftile.CrossEntropyLoss(z_loss=-1.0), lambda: rooftile.cross_entropy(X, Y, z_loss=-1.0)),
        (lambda: rooftile.LinearCrossEntropyLoss(8, 4, chunk=0), lambda: rooftile.linear_cross_entropy(X, X, Y, chunk=0)),
        (lambda: rooftile.LinearCrossEntropyLoss(8, 4, softcap=None), lambda: rooftile.linear_cross_entropy(X, X, Y, softcap=None)),
        (lambda: rooftile.Dropout(1.5), lambda: rooftile.dropout(X, 1.5)),
        (lambda: rooftile.MultiheadAttention(8, 2, -1.0), lambda: rooftile.attention(*[X[None, :, None]] * 3, dropout_p=-1.0)),
        (lambda: rooftile.Softmax(None), lambda: rooftile.softmax(X, None)),
        (lambda: rooftile.LogSoftmax(1.0), lambda: rooftile.log_softmax(X, 1.0)),
        (lambda: rooftile.LayerNorm(8, eps=None), lambda: rooftile.layernorm(X, eps=None)),
        (lambda: rooftile.RMSNorm(8, eps="a"), lambda: rooftile.rmsnorm(X, eps="a")),
        (lambda: rooftile.RMSNorm(8, offset=None), lambda: rooftile.rmsnorm(X, offset=None)),
        (lambda: rooftile.Embedding(4, 8, padding_idx="a"), lambda: rooftile.embedding(Y, X, "a")),
    ],
)
def test_a_module_refuses_when_it_is_made_what_its_function_refuses(made, called):
    with pytest.raises(ValueError) as module:
        made()
    with pytest.raises(ValueError) as function:
        called()
    assert str(module.value) == str(function.value)


def test_a_module_is_made_anywhere():
    """On the meta device, under fake tensors, and inside what is compiled."""
    for name in ("softmax", "cross_entropy", "layernorm"):
        vars(OPS[name]).pop("_example", None)
    with torch.device("meta"):
        assert rooftile.LayerNorm(8).weight.is_meta and rooftile.CrossEntropyLoss().reduction == "mean"
    vars(OPS["cross_entropy"]).pop("_example", None)
    with FakeTensorMode():
        assert rooftile.CrossEntropyLoss().reduction == "mean"
    with pytest.raises(ValueError, match="reduction is 'foo'"):
        rooftile.CrossEntropyLoss(reduction="foo")
    loss = torch.compile(lambda x, y: rooftile.CrossEntropyLoss()(x, y), backend="eager", fullgraph=True)
    assert torch.equal(loss(X, Y), rooftile.cross_entropy(X, Y))


def test_in_vmap_too_what_has_no_gradient_is_refused():
    """There a tensor says that it requires none, and what it wraps does."""
    x = X.expand(2, 4, 8).clone().requires_grad_()
    with pytest.raises(ValueError, match="quantize has no gradient, and x requires one"):
        torch.vmap(rooftile.quantize)(x)
    assert torch.vmap(rooftile.quantize)(x.detach())[0].shape == x.shape


@pytest.mark.parametrize(
    "call, said",
    [
        (
            lambda t: rooftile.residual_add(t, t.clone(), inplace=True),
            "residual_add_overwrite writes in place, which torch.func's transforms have no rule for",
        ),
        (
            lambda t: rooftile.swiglu_again(t, t.clone(), t.clone()),
            "swiglu_again writes in place, which torch.func's transforms have no rule for",
        ),
        (lambda t: rooftile.grad_norm([t]), "grad_norm takes lists of tensors, which torch.func's transforms have no rule for"),
        (
            lambda t: rooftile.adamw([t], [t], [t], [t], X[:1, :4]),
            "adamw takes lists of tensors, which torch.func's transforms have no rule for",
        ),
    ],
)
def test_what_vmap_has_no_rule_for_is_told(call, said):
    with pytest.raises(RuntimeError, match=said):
        torch.vmap(call)(X.clone())


@pytest.fixture
def mesh():
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


def test_dtensors_are_told_what_to_do(mesh):
    """Seen red: "Operator rooftile.gelu.default does not have a sharding strategy registered", and where one is plain, to make DTensors of all."""
    x, weight = (distribute_tensor(torch.randn(4, 8), mesh, [placement]) for placement in (Shard(0), Replicate()))
    for name, argument, call in (
        ("gelu", "x", lambda: rooftile.gelu(x)),
        ("linear", "x", lambda: rooftile.Linear(8, 3)(x)),
        ("layernorm", "weight", lambda: rooftile.layernorm(X, weight[0])),
        ("rmsnorm", "x", lambda: rooftile.stream_rmsnorm(x.detach().requires_grad_())),
        ("attention", "q", lambda: rooftile.scaled_dot_product_attention(x, x, x)),
        ("cross_entropy", "logits", lambda: rooftile.cross_entropy(x, Y, inplace_backward=True)),
        ("linear_cross_entropy", "weight", lambda: rooftile.linear_cross_entropy(X, weight, Y)),
        ("residual_add_overwrite", "residual", lambda: rooftile.residual_add(X, weight, inplace=True)),
        ("grad_norm", "grads", lambda: rooftile.grad_norm([x, x])),
    ):
        with pytest.raises(NotImplementedError, match=f"{name}: {argument} is a DTensor, and .* call it on what each rank holds"):
            call()
    rows = local_map(rooftile.gelu, out_placements=[Shard(0)], in_placements=([Shard(0)],))(x)
    assert rows.placements == (Shard(0),) and torch.equal(rows.to_local(), rooftile.gelu(x.to_local()))


def test_asserts_narrow_types_and_decide_nothing():
    """Under python -O there are none. Seen red: one asked the loader where a library lies, and the simulator read at address 0; another held NVRTC to its status."""
    for path in Path(rooftile.__file__).parent.rglob("*.py"):
        for node in (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Assert)):
            for part in node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]:
                said = ast.unparse(part)
                assert re.fullmatch(r"[\w.\[\]]+ is not None|isinstance\([\w.\[\]]+, [\w.(), ]+\)", said), f"{path}:{node.lineno}: {said}"


def test_without_asserts_a_kernel_runs_in_the_simulator():
    program = "import torch, rooftile; from rooftile.cuda import simulator\nwith simulator.active(): print(float(rooftile.softmax(torch.ones(4, 64)).sum()))"
    ran = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "4.0\n"), ran.stderr
