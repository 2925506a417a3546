"""What the grid cannot say of AdamW: many steps beside PyTorch's, state dicts both ways, what it refuses."""

import sys

import pytest
import torch

import rooftile
from rooftile.ops.adamw.spec import SPEC


def models(dtype=torch.float32):
    torch.manual_seed(0)
    one = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3)).to(dtype)
    two = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3)).to(dtype)
    two.load_state_dict(one.state_dict())
    return one, two


def groups(model):
    return [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 3e-3},
    ]


def steps(model, optimizer, count, start=0):
    for i in range(start, start + count):
        torch.manual_seed(i)
        model(torch.randn(4, 7)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def close(one, two):
    for a, b in zip(one.parameters(), two.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_fifty_steps_beside_pytorch():
    one, two = models()
    steps(one, rooftile.AdamW(groups(one), lr=1e-2), 50)
    steps(two, torch.optim.AdamW(groups(two), lr=1e-2), 50)
    close(one, two)


@pytest.mark.parametrize("first, second", [(rooftile.AdamW, torch.optim.AdamW), (torch.optim.AdamW, rooftile.AdamW)])
def test_state_dicts_go_both_ways(first, second):
    one, two = models()
    a, b = first(groups(one), lr=1e-2), torch.optim.AdamW(groups(two), lr=1e-2)
    steps(one, a, 5)
    steps(two, b, 5)
    c = second(groups(one), lr=1e-2)
    c.load_state_dict(a.state_dict())
    steps(one, c, 5, 5)
    steps(two, b, 5, 5)
    close(one, two)


def test_a_parameter_without_gradient_is_left_alone():
    one, _ = models()
    before = one[0].weight.clone()
    optimizer = rooftile.AdamW(one.parameters(), lr=1.0)
    one[2].bias.grad = torch.ones_like(one[2].bias)
    optimizer.step()
    assert torch.equal(one[0].weight, before) and not torch.equal(one[2].bias, torch.zeros(3))


def test_one_launch_for_all_groups(monkeypatch):
    one, _ = models()
    launched = []
    monkeypatch.setattr(sys.modules["rooftile.ops.adamw.api"], "_adamw", lambda *args: launched.append(len(args[0])))
    steps(one, rooftile.AdamW(groups(one)), 1)
    assert launched == [6]


@pytest.mark.parametrize(
    "wrong, words", [({"lr": -1.0}, "lr is -1.0"), ({"betas": (0.9, 1.0)}, r"betas are \(0.9, 1.0\)"), ({"eps": -1e-8}, "eps is -1e-08")]
)
def test_wrong_settings(wrong, words):
    with pytest.raises(ValueError, match=words):
        rooftile.AdamW([torch.nn.Parameter(torch.ones(1))], **wrong)


def test_wrong_lists():
    call = SPEC.draw(SPEC.cases[0])
    with pytest.raises(ValueError, match="number of tensors P is 2 in grads, but 3 in params"):
        rooftile.adamw(call["params"], call["grads"][:2], call["exp_avgs"], call["exp_avg_sqs"], call["hyper"])
    with pytest.raises(ValueError, match=r"hyper is \[2, 4\], needs \[3, 4\]"):
        rooftile.adamw(call["params"], call["grads"], call["exp_avgs"], call["exp_avg_sqs"], call["hyper"][:2])
