"""What the grid cannot say of softmax's other forms: shapes of masks, rows with nothing to look at, what is said of wrong calls."""

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.ops import LogSoftmax, attention_mask, log_softmax, softmax

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "shape, mask", [((5, 7), (7,)), ((2, 5, 7), (5, 7)), ((2, 3, 5, 7), (2, 1, 5, 7)), ((4, 2, 3, 5, 7), (4, 1, 1, 5, 1)), ((7,), (7,))]
)
def test_masks_broadcast(shape, mask, device):
    x, may = torch.randn(shape, device=device, requires_grad=True), torch.rand(mask, device=device) < 0.7
    may[..., 0] = True
    want = torch.softmax((x * 0.5).masked_fill(~may, float("-inf")), -1)
    out = softmax(x, scale=0.5, mask=may)
    torch.testing.assert_close(out, want)
    upstream = torch.randn_like(out)
    torch.testing.assert_close(torch.autograd.grad(out, x, upstream), torch.autograd.grad(want, x, upstream))


@pytest.mark.parametrize("device", DEVICES)
def test_causal_under_a_padded_batch(device):
    x, lengths = torch.randn(3, 2, 6, 6, device=device), torch.tensor([0, 4, 6], device=device)
    out = softmax(x, causal=True, mask=attention_mask(lengths, 6))
    assert torch.equal(out == 0, ~attention_mask(lengths, 6, causal=True).expand(x.shape))
    torch.testing.assert_close(out.sum(-1)[1:], torch.ones(2, 2, 6, device=device))


@pytest.mark.parametrize("kernel", [k for k in OPS["masked_softmax"].kernels if k.name.startswith("cuda.")], ids=lambda k: k.name)
def test_scores_as_large_as_floats_are(kernel):
    """Rows that a mask of the smallest float has hidden, added and not handed over, are even; nothing on the way to an exponent overflows."""
    ends = torch.finfo(torch.bfloat16)
    x = torch.zeros(1, 1, 5, 16, dtype=torch.bfloat16)
    x[..., 0, :], x[..., 1, 1:], x[..., 2, 5], x[..., 3, :], x[..., 4, ::2] = ends.min, ends.min, ends.max, ends.max, ends.min
    for scores in (x, torch.full((1, 1, 2, 8), 3e9)):
        with simulator.active():
            got = kernel.bound(kernel.heuristic({"x": scores, "mask": None, "scale": 1.0, "causal": False}))(scores, None, 1.0, False)
        torch.testing.assert_close(got, torch.softmax(scores.double(), -1).to(scores.dtype))


def test_a_row_with_nothing_to_look_at_is_zeros_and_has_no_gradient():
    x = torch.randn(2, 4, requires_grad=True)
    out = softmax(x, mask=torch.tensor([[False], [True]]))
    (dx,) = torch.autograd.grad(out, x, torch.randn(2, 4))
    assert not out[0].any() and not dx[0].any() and bool(dx[1].any())
    assert softmax(torch.full((1, 4), float("-inf"))).isnan().all()  # without a mask PyTorch decides


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_log_softmax_along_any_axis(dim):
    x = torch.randn(3, 4, 5)
    torch.testing.assert_close(log_softmax(x, dim), torch.log_softmax(x, dim))
    torch.testing.assert_close(LogSoftmax(dim)(x), torch.nn.LogSoftmax(dim)(x))


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda x: softmax(x, 0, scale=2.0), "dim is 0, but scores of a scale or a mask are normalised along the last of 2 axes"),
        (lambda x: softmax(x, None), "softmax: dim is None, takes int"),
        (lambda x: softmax(x[0, 0], scale=2.0), r"softmax: x has 0 axes \[\], needs at least 1"),
        (lambda x: softmax(x[0, 0], mask=x[0, 0] == 0), r"softmax: x has 0 axes \[\], needs at least 1"),
        (lambda x: log_softmax(x.tolist(), 0), "log_softmax: x must be a tensor, got list"),
        (lambda x: softmax(x[0], causal=True), r"causal rows are the last but one axis, x has 1 \[4\]"),
        (lambda x: softmax(x, mask=torch.ones(3)), "mask is float32, takes bool"),
        (lambda x: softmax(x, mask=torch.ones(3, dtype=torch.bool)), r"mask is \[3\], which does not broadcast to x's \[3, 4\]"),
        (lambda x: softmax(x.long(), scale=2.0), "x is int64, takes float32, bfloat16, float16"),
    ],
)
def test_a_wrong_call_names_both_sides(call, said):
    with pytest.raises(ValueError, match=said):
        call(torch.zeros(3, 4))
