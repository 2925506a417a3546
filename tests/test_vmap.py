"""vmap of every operator beside a call a sample: with its first tensor mapped, and with all of them."""

import warnings

import pytest
import torch

import rooftile
from rooftile.core.kernel import OPS
from rooftile.models import GPT2
from rooftile.models.gpt2 import GPT2Config

MAPPED = [n for n, op in OPS.items() if not any(a.many or a.mutated for a in op.spec.args.values())]
AT_ONCE = [
    "attention",
    "attention_backward",
    "gelu",
    "layernorm",
    "linear",
    "masked_softmax",
    "mlp",
    "softmax_backward",
    "swiglu",
    "transpose",
]


def mapped(name, which, samples=3, nth=0):
    """What vmap makes, what calls make, and whether it said that it calls once a sample."""
    op, here = OPS[name], torch.device("cpu")
    case = [c for c in op.spec.cases if "smoke" in c.use][nth]
    calls = [op.spec.draw(case, seed, here) for seed in range(samples)]
    there = [n for n in op.spec.args if calls[0][n] is not None]
    changed = there if which == "all" else there[:1]
    each = [op.entry(*(calls[0] | {n: call[n] for n in changed}).values()) for call in calls]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        at_once = torch.vmap(lambda *tensors: op.entry(*(calls[0] | dict(zip(changed, tensors))).values()))
        made = at_once(*(torch.stack([call[n] for call in calls]) for n in changed))
    wanted = [torch.stack(t) for t in zip(*(one if isinstance(one, tuple) else (one,) for one in each))]
    return made if isinstance(made, tuple) else (made,), wanted, [str(w.message) for w in told]


@pytest.mark.parametrize("which, nth", [("first", 0), ("all", 0), ("all", 1)])
@pytest.mark.parametrize("name", MAPPED)
def test_vmap_makes_what_a_call_a_sample_makes(name, which, nth):
    made, wanted, told = mapped(name, which, nth=nth)
    for ours, theirs in zip(made, wanted, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-4, equal_nan=True)
    assert set(told) <= {f"vmap calls {name} once a sample, 3 times"}  # and PyTorch, which says whose fault it is not, says nothing


@pytest.mark.parametrize("name", AT_ONCE)
def test_samples_are_rows_more_or_more_of_a_batch(name):
    assert mapped(name, "all" if "attention" in name or "softmax" in name or "swiglu" in name else "first")[2] == []


def test_each_sample_draws_what_a_call_draws():
    x, seed = torch.ones(3, 64), torch.tensor(7)
    with pytest.warns(RuntimeWarning, match="vmap calls dropout once a sample, 3 times"):
        made = torch.vmap(lambda x: rooftile.dropout(x, 0.5, seed=seed))(x)
    assert torch.equal(made, rooftile.dropout(x[0], 0.5, seed=seed).expand(3, 64))


def test_axes_and_axes_inside():
    x = torch.randn(4, 5, 8)
    for at in (1, -1):
        assert torch.equal(torch.vmap(rooftile.softmax, in_dims=at)(x), torch.vmap(lambda x: torch.softmax(x, -1), in_dims=at)(x))
    assert torch.equal(torch.vmap(torch.vmap(rooftile.gelu))(x), rooftile.gelu(x))
    assert torch.vmap(rooftile.gelu)(x[:0]).shape == (0, 5, 8)
    with pytest.warns(RuntimeWarning, match="once a sample, 0 times"):
        assert torch.vmap(lambda w: rooftile.linear(x[0], w))(torch.ones(0, 3, 8)).shape == (0, 5, 3)


def test_under_compile_and_autocast():
    x = torch.randn(4, 5, 8)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(torch.vmap(rooftile.gelu), backend="eager", fullgraph=True)(x), rooftile.gelu(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.vmap(lambda x: rooftile.linear(x, torch.ones(3, 8)))(x).dtype == torch.bfloat16


def test_gradients_of_what_is_mapped():
    ours, theirs = (torch.ones(4, 5, 8).cumsum(-1).requires_grad_() for _ in range(2))
    torch.vmap(rooftile.softmax)(ours).pow(2).sum().backward()
    torch.softmax(theirs, -1).pow(2).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def gpt2():
    model = GPT2(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    return model, lambda run, x, y: run(x, y)


def patched_llama():
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, max_position_embeddings=16, **shape))
    rooftile.patch(model)
    return model.train(), lambda run, x, y: run(input_ids=x, labels=y, use_cache=False).loss


@pytest.mark.filterwarnings("ignore:vmap calls")
@pytest.mark.parametrize("make", [gpt2, patched_llama])
def test_a_gradient_a_sample_of_a_whole_model(make):
    """With streams of norms, tied tables and products that a model's layers share: functions around operators leave all of it to them inside a transform."""
    torch.manual_seed(0)
    model, loss = make()
    x, y = torch.randint(0, 64, (2, 3, 8))
    weights = {name: w.detach() for name, w in model.named_parameters()}

    def of_sample(weights, x, y):
        return loss(lambda *a, **k: torch.func.functional_call(model, weights, a, k), x[None], y[None])

    made = torch.vmap(torch.func.grad(of_sample), in_dims=(None, 0, 0))(weights, x, y)
    for i in range(len(x)):
        one = torch.autograd.grad(loss(model, x[i : i + 1], y[i : i + 1]), list(model.parameters()))
        torch.testing.assert_close([g[i] for g in made.values()], list(one), atol=1e-5, rtol=1e-5)
