"""hypothesis chooses shapes, strides and dtypes; what must hold, holds for all of them."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rooftile
from rooftile.core.kernel import OPS
from rooftile.workbench import check, inputs

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SIZES = st.integers(1, 40)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def strided(draw, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this shape whose strides are hypothesis's choice: permuted, sliced, or expanded."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.integers(1, 3)) for _ in shape]
    base = torch.randn([shape[i] * steps[i] for i in order]).to(dtype)
    back = [list(order).index(i) for i in range(len(shape))]
    view = base.permute(back)[tuple(slice(None, None, s) for s in steps)]
    assert tuple(view.shape) == shape
    return view


@st.composite
def tensors(draw):
    return strided(draw, tuple(draw(st.lists(SIZES, min_size=1, max_size=3))), draw(DTYPES))


@QUICK
@given(tensors())
def test_elementwise_and_rows_ignore_strides(x):
    for f in (rooftile.softmax, rooftile.gelu, rooftile.layernorm, lambda t: rooftile.vector_add(t, t)):
        y = f(x)
        assert y.shape == x.shape and y.dtype == x.dtype and y.is_contiguous()
        torch.testing.assert_close(y, f(x.contiguous()))  # not to the bit: PyTorch sums in the order memory has


@QUICK
@given(tensors(), st.integers(0, 2**31), st.floats(0, 1))
def test_dropout_is_its_own_backward_and_ignores_strides(x, seed, p):
    y = rooftile.dropout(x, p, seed=seed)
    assert torch.equal(y, rooftile.dropout(x.contiguous(), p, seed=seed))
    leaf = torch.ones(x.shape, requires_grad=True)
    (g,) = torch.autograd.grad(rooftile.dropout(leaf, p, seed=seed).sum(), leaf)
    assert torch.equal(g == 0, rooftile.dropout(torch.ones(x.shape), p, seed=seed) == 0)


@QUICK
@given(SIZES, SIZES, SIZES, DTYPES, st.data())
def test_gemm_of_small_integers_is_exact(m, n, k, dtype, data):
    a, b = strided(data.draw, (m, k), dtype), strided(data.draw, (k, n), dtype)
    a, b = (t.mul(2).round().clamp(-3, 3) for t in (a, b))
    assert torch.equal(rooftile.gemm(a, b), (a.double() @ b.double()).to(dtype))


@QUICK
@given(st.integers(1, 3), SIZES, SIZES, st.integers(1, 3), st.booleans(), st.data())
def test_attention_rows_are_weighted_means(b, t, s, h, causal, data):
    q, k, v = (strided(data.draw, (b, n, h, 16), torch.float32) for n in (t, s, s))
    out = rooftile.attention(q, k, v, causal=causal)
    assert bool((out.amax() <= v.amax().clamp_min(0) + 1e-4) and (out.amin() >= v.amin().clamp_max(0) - 1e-4))
    torch.testing.assert_close(out, rooftile.attention(q.contiguous(), k.contiguous(), v.contiguous(), causal=causal), rtol=1e-4, atol=1e-5)


@QUICK
@given(SIZES, st.integers(1, 60), st.floats(0, 0.9), st.data())
def test_cross_entropy_is_pytorchs(m, v, smoothing, data):
    logits = strided(data.draw, (m, v), torch.float32)
    target = torch.randint(0, v, (m,))
    target[data.draw(st.integers(0, m - 1))] = -100
    for reduction in ("none", "sum", "mean"):
        ours = rooftile.cross_entropy(logits, target, label_smoothing=smoothing, reduction=reduction)
        theirs = torch.nn.functional.cross_entropy(logits, target, label_smoothing=smoothing, reduction=reduction)
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("name", [op.spec.name for op in check.all_ops()])
def test_layouts_hold_the_same_values(name):
    spec = OPS[name].spec
    call = spec.draw(spec.cases[0])
    for layout in inputs.layouts(spec):
        for n, v in inputs.lay_out(spec, call, layout).items():
            if isinstance(v, torch.Tensor) and isinstance(call[n], torch.Tensor):
                assert v.dtype == call[n].dtype and torch.equal(v.double().nan_to_num(7.5), call[n].double().nan_to_num(7.5))
