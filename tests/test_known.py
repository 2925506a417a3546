"""A call that is taken for one before is one: each test below changes one thing that an operator must notice."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import rooftile
from rooftile.core import known
from rooftile.core.kernel import OPS
from rooftile.core.known import MISS


def made(*args, written=(), deterministic=None):
    call = known.code(args, lambda *given: "run", written, deterministic)
    assert call is None or call(*args) == "run"
    return call


WHOLE = torch.randn(28)
X = WHOLE[:24].view(4, 6)
OTHERS = {
    "shape": torch.randn(4, 7),
    "one axis more": torch.randn(4, 6, 1),
    "strides": torch.randn(6, 4).t(),
    "dtype": torch.randn(4, 6).double(),
    "alignment": WHOLE[1:25].view(4, 6),
    "sign": torch._neg_view(torch.randn(4, 6)),
    "class": torch.nn.Parameter(torch.randn(4, 6), requires_grad=False),
    "a gradient": torch.randn(4, 6, requires_grad=True),
    "device": torch.empty(4, 6, device="meta"),
    "layout": torch.randn(4, 6).to_sparse(),
    "nesting": torch.nested.nested_tensor([torch.randn(4, 6)]),
    "no tensor": 3.0,
    "nothing": None,
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_tensor_that_differs_in_one_respect(other):
    plain, listed = made(X, True), made([X, torch.zeros(3)], 2.0)
    assert plain(torch.randn(4, 6), True) == "run" and plain(other, True) is MISS
    assert listed([torch.randn(4, 6), torch.ones(3)], 2.0) == "run"
    assert listed([other, torch.zeros(3)], 2.0) is MISS and listed([torch.randn(4, 6), other], 2.0) is MISS and listed(other, 2.0) is MISS


def test_parameters_and_lengths():
    call = made(X, 1.0, True, None, "tanh", [4, 6])
    for other in ((2.0, True, None, "tanh", [4, 6]), (1, True, None, "tanh", [4, 6]), (1.0, 1, None, "tanh", [4, 6]), (1.0, True, X, "tanh", [4, 6]),
                  (1.0, True, None, "none", [4, 6]), (1.0, True, None, "tanh", [4, 7]), (X, True, None, "tanh", [4, 6])):  # fmt: skip
        assert call(X, *other) is MISS
    a, b, c = (torch.randn(4, 6) for _ in range(3))
    pairs = made([a, b], [c])
    assert pairs([a], [b, c]) is MISS and pairs([a], [b]) is MISS and pairs((a, b), [c]) is MISS and pairs([b, a], [c]) == "run"


def test_what_cannot_be_told_apart_is_not_learnt():
    assert made(OTHERS["alignment"]) is None and made([X, OTHERS["alignment"]]) is None and made(3.0) is None and made(X, X) is None
    assert made(X, torch.randn(4, 6))(X, X) is MISS  # a replay of two tensors knows nothing of one


def test_modes_around_the_call():
    """As autocast, a tensor mode, vmap and forward mode ask for the other door, inside them nothing is known."""
    call = made(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert call(X) is MISS
    with TorchDispatchMode():
        assert call(X) is MISS
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert call(X) is MISS
    seen = []
    make_fx(lambda x: (seen.append(call(x)), x)[1])(X)
    torch.vmap(lambda x: (seen.append(call(x)), x)[1])(torch.randn(2, 4, 6))
    torch.func.grad(lambda x: (seen.append(call(x)), x.sum())[1])(X)
    assert seen == [MISS, MISS, MISS]
    with forward_ad.dual_level():
        assert call(X) is MISS
    with torch.inference_mode():
        assert call(torch.randn(4, 6)) is MISS
    assert call(X) == "run"


def test_what_is_known_is_a_node_to_who_traces():
    """After a call of the same shape the guards let the kernel run, and a trace held the reference's operators, or a GPU's nothing."""
    x = torch.randn(4, 6)
    rooftile.gelu(x)
    assert OPS["gelu"]._known.calls
    traced = make_fx(lambda x: rooftile.gelu(x))(x)
    assert [n.target for n in traced.graph.nodes if n.op == "call_function"] == [torch.ops.rooftile.gelu.default]
    scripted = torch.jit.trace(lambda x: rooftile.gelu(x), x)
    assert [n.kind() for n in scripted.graph.nodes() if n.kind() != "prim::Constant"] == ["rooftile::gelu"]


def test_gradients_and_determinism_that_were_off():
    weight = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        call = made(X, weight)
    assert call(X, weight) is MISS
    call = made(X, deterministic=False)
    torch.use_deterministic_algorithms(True)
    try:
        assert call(X) is MISS
    finally:
        torch.use_deterministic_algorithms(False)
    assert call(X) == "run"


def test_what_is_written_is_told_to_autograd():
    x, y = X.clone(), X.clone()
    before = x._version, y._version
    made(x, [y], None, written=(1, 2))
    assert (x._version, y._version) == (before[0], before[1] + 1)


def test_lists_that_are_written_lie_apart():
    """Guards tell no views of one memory apart, of as many as an optimizer has. Another group of like tensors is the same call."""
    x, y, z = X.clone(), X.clone(), X.clone()
    call = made([x, y], [X.clone()], [z], written=(0, 2))
    row = torch.zeros(2 * X.numel() + 3)
    apart, over, odd = ([row[a : a + 24].view(4, 6), row[b : b + 24].view(4, 6)] for a, b in ((0, 24), (0, 4), (0, 26)))
    for params in ([x, y], [y, x], [x, X.clone()], apart):
        assert call(params, [X.clone()], [z]) == "run" and call(params, [X.clone()], [X.clone()]) == "run"
    for params, other in (([x, x], z), ([x, y], x), (over, z), (odd, z), (apart, row[8:32].view(4, 6))):
        assert call(params, [X.clone()], [other]) is MISS


def test_what_is_read_lies_apart_from_lists_that_are_written():
    """Where these lie where they lay, and where they do not; a single tensor too."""
    row, there, z = torch.zeros(64), torch.ones(1), X.clone()
    params = [row[8:32].view(4, 6), row[32:56].view(4, 6)]
    call = made(params, [row[4:5].expand(4, 6)], [z], there.expand(4), written=(0, 2))
    for lists in ((params, [z]), ([X.clone(), X.clone()], [z]), (params[::-1], [X.clone()])):
        for one in (row[4:5], row[60:61], row[56:57], X.clone()[0, :1]):
            assert call(lists[0], [one.expand(4, 6)], lists[1], there.expand(4)) == "run"
            assert call(lists[0], [there.expand(4, 6)], lists[1], one.expand(4)) == "run"
        for one in (lists[0][0][0, :1], lists[0][1][3, 2:3], lists[1][0].view(-1)[20:21], row[57:58]):
            assert call(lists[0], [one.expand(4, 6)], lists[1], there.expand(4)) is MISS
            assert call(lists[0], [there.expand(4, 6)], lists[1], one.expand(4)) is MISS


def test_an_operator_learns_forgets_and_does_not_pay_for_what_never_repeats():
    op = OPS["gelu"]
    op.forget()
    x = torch.randn(4, 6)
    want = rooftile.gelu(x)
    assert len(op._known.calls) == 1
    assert torch.equal(rooftile.gelu(x), want) and op._known.calls[0](x, "none") is not MISS
    for n in range(200, 240):
        rooftile.gelu(torch.randn(n))
    assert len(op._known.calls) == known.KEPT and op._known.calls[0](torch.randn(230), "none") is not MISS  # the 32nd miss
    assert op._known.calls[0](x, "none") is MISS and torch.equal(rooftile.gelu(x), want)
    op.forget()
    assert not op._known.calls


def test_a_known_call_still_gives_gradients_to_who_asks():
    op = OPS["gelu"]
    op.forget()
    x = torch.randn(4, 6)
    rooftile.gelu(x)
    y = x.clone().requires_grad_()
    with torch.no_grad():
        for _ in range(2):
            rooftile.gelu(y)
    rooftile.gelu(y).sum().backward()
    assert len(op._known.calls) == 2 and y.grad is not None


def test_lists_that_begin_elsewhere():
    op, whole = OPS["grad_norm"], torch.randn(9)
    op.forget()
    for start in (0, 1, 0):
        part = whole[start : start + 8]
        torch.testing.assert_close(rooftile.grad_norm([part]), part.norm())
    assert len(op._memo) == 2 and len(op._known.calls) == 1
    op.forget()
