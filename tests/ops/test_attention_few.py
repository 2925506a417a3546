"""Few queries over many keys, and queries that are not as many as keys: who takes which call, and what the kernels of others are told."""

from dataclasses import replace

import pytest
import torch

import processes
from rooftile.core.kernel import OPS
from rooftile.ops.attention import options_reference, reference, shifted_kernels, split_kernels
from rooftile.ops.attention.gluon_options_launchers import KERNELS as GLUON_OPTIONS

PLAIN, OPTIONS = OPS["attention"], OPS["attention_options"]


def drawn(t, s, h=4, g=2, d=64, dtype=torch.bfloat16):
    gen = torch.Generator().manual_seed(t + s)
    return tuple(torch.randn(2, n, x, d, generator=gen).to(dtype) for n, x in ((t, h), (s, g), (s, g)))


def plain(t, s, causal=True, **more):
    return dict(zip(PLAIN.names, (*drawn(t, s, **more), causal, 0.125)))


def asked(t, s, **more):
    q, k, v = drawn(t, s)
    call = {"q": q, "k": k, "v": v, "scale": 0.125, "left": -1, "right": -1, "softcap": 0.0, "p": 0.0}
    return dict.fromkeys(OPTIONS.names) | call | {"deterministic": False} | more


SPLIT = {
    "17 and D=64: it is written for 16 queries": plain(17, 40),
    "T=4 and D=8: it is written for": plain(4, 40, d=8),
    "there are no heads": plain(1, 40, h=0, g=0),
    "T=1 and D=320: it is written for 16 queries at most and D of 16 to 256": plain(1, 40, d=320),
    "4 queries that all see every key": plain(4, 40, causal=False),
    "the tensor is float32": plain(1, 40, dtype=torch.float32),
    "the last axis of k has stride 2;": plain(1, 40) | {"k": torch.zeros(2, 40, 2, 128, dtype=torch.bfloat16)[..., ::2]},
    "values of 32": plain(1, 40) | {"v": torch.zeros(2, 40, 2, 32, dtype=torch.bfloat16)},
    "it needs a CUDA device": plain(1, 40),
}


@pytest.mark.parametrize("said", SPLIT)
def test_what_the_split_kernel_refuses(said):
    assert said in split_kernels.KERNELS[0].refuse(SPLIT[said])


@pytest.mark.parametrize(
    "said, more",
    [
        ("a mask was given", {"mask": torch.ones(2, 4, 4, 40, dtype=torch.bool)}),
        ("a seed was given", {"seed": torch.tensor(1), "p": 0.5}),
        ("4 queries and right=3", {"right": 3}),
        ("4 queries and right=-1", {}),
        ("it needs a CUDA device", {"right": 0}),
    ],
)
def test_which_options_it_refuses(said, more):
    assert said in split_kernels.OPTIONS[0].refuse(asked(4, 40, **more))
    assert "it needs a CUDA device" in split_kernels.OPTIONS[0].refuse(asked(1, 40, right=3))  # one query: there is nothing to its right


CHOSEN = """
import torch
from rooftile import attention, scaled_dot_product_attention
from rooftile.core.kernel import OPS
from rooftile.ops.attention import reference

def q(t, d=64, h=4): return torch.randn(2, t, h, d).bfloat16()
def chosen(op, call): return OPS[op].choose(dict(zip(OPS[op].names, call))).kernel.name

few, many = (q(3), q(40, h=2), q(40, h=2)), (q(17), q(40, h=2), q(40, h=2))
print(chosen("attention", (*few, True, 0.1)), chosen("attention", (*many, True, 0.1)), chosen("attention", (*few, False, 0.1)))
print(chosen("attention_options", (*few, None, None, None, None, None, 0.1, 20, 0, 0.0, 0.0, False)))
one = [x.transpose(1, 2) for x in (q(1), *few[1:])]
mine, theirs = (f(*one, enable_gqa=True).float() for f in (scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention))
assert torch.allclose(mine, theirs, atol=0.02), (mine - theirs).abs().max()
leaves = [x.requires_grad_() for x in few]
attention(*leaves, causal=True).sum().backward()
wanted = reference.attention_backward(torch.ones_like(few[0]), *few, *reference.attention(*few, True, 0.125), True, 0.125)
assert all(torch.allclose(x.grad.float(), w.float(), atol=0.05) for x, w in zip(leaves, wanted))
"""


def test_who_takes_few_queries():
    made = processes.run(code=CHOSEN, TRITON_INTERPRET="1")
    assert made.stdout.split() == ["triton.split", "triton", "triton", "triton.split"], made.stdout + made.stderr


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("t, s", [(5, 40), (40, 5)])
def test_what_the_options_kernels_are_told_of_a_shifted_call(t, s, causal):
    """The same as the plain operator's definition says."""
    told = replace(GLUON_OPTIONS[0], run=lambda *call, config: options_reference.attention_options(*call))
    call = (*drawn(t, s, dtype=torch.float64), causal, 0.125)
    made = shifted_kernels._shifted(told, "told", "").run(*call, config={})
    assert all(map(torch.allclose, made, reference.attention(*call)))


def test_what_the_shifted_kernels_refuse():
    narrow = shifted_kernels.KERNELS[0]
    assert "T and S are both 40" in narrow.refuse(plain(40, 40))
    assert all("it needs a Hopper GPU" in kernel.refuse(plain(40, 50)) for kernel in shifted_kernels.KERNELS)
    assert (
        narrow.pick({"q": torch.empty(1, 8192, 16, 64, device="meta"), "k": None, "v": None, "causal": True, "scale": 1.0})["groups"] == 3
    )
    assert "it pays from" in narrow.declines(plain(40, 50))
    assert narrow.declines({"q": torch.empty(1, 2048, 16, 64, device="meta"), "k": torch.empty(1, 16384, 16, 64, device="meta"), "v": None,
                            "causal": True, "scale": 1.0}) is None  # fmt: skip
