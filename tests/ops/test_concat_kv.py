"""What the grid cannot say of concat_kv: layouts, that it is rope and a copy, decoding step by step, what is said of wrong calls."""

import pytest
import torch

import processes
from rooftile.ops import concat_kv, rope, rope_table

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def drawn(device="cpu", b=2, g=3, s=12, t=4, d=16):
    cache = [torch.randn(b, g, s, d, device=device) for _ in range(2)]
    new = [torch.randn(b, g, t, d, device=device) for _ in range(2)]
    return *cache, *new, torch.tensor([3, 8], device=device), *rope_table(s, d, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
def test_it_is_rope_and_a_copy(layout, device):
    k_cache, v_cache, k, v, lengths, cos, sin = drawn(device)
    want_k, want_v = k_cache.clone(), v_cache.clone()
    at = lengths[:, None] + torch.arange(4, device=device)
    turned = rope(k, None, cos, sin, at)
    for b, n in enumerate(lengths.tolist()):
        want_k[b, :, n : n + 4], want_v[b, :, n : n + 4] = turned[b], v[b]
    swap = (lambda x: x) if layout == "BHTD" else (lambda x: x.transpose(1, 2).contiguous())
    caches = swap(k_cache), swap(v_cache)
    concat_kv(*caches, swap(k), swap(v), lengths, cos, sin, layout=layout)
    torch.testing.assert_close(caches[0], swap(want_k))
    assert torch.equal(caches[1], swap(want_v))


@pytest.mark.parametrize("device", DEVICES)
def test_token_by_token_is_all_at_once(device):
    k_cache, v_cache, k, v, lengths, cos, sin = drawn(device)
    at_once = k_cache.clone(), v_cache.clone()
    concat_kv(*at_once, k, v, lengths, cos, sin, interleaved=True)
    for t in range(4):
        concat_kv(k_cache, v_cache, k[:, :, t : t + 1], v[:, :, t : t + 1], lengths + t, cos, sin, interleaved=True)
    assert torch.equal(k_cache, at_once[0]) and torch.equal(v_cache, at_once[1])


@pytest.mark.gpu
def test_what_does_not_fit_is_not_written_on_a_gpu():
    k_cache, v_cache, k, v = drawn("cuda")[:4]
    before = k_cache.clone()
    concat_kv(k_cache, v_cache, k, v, torch.tensor([10, -1], device="cuda"))
    assert torch.equal(k_cache[:, :, :10], before[:, :, :10]) and torch.equal(k_cache[1], before[1])
    assert torch.equal(k_cache[0, :, 10:], k[0, :, :2])


@pytest.mark.parametrize(
    "change, said",
    [
        ({"lengths": torch.tensor([3, 9])}, "a sequence has 9 keys, 4 more do not fit a cache of 12"),
        ({"cos": torch.ones(11, 8), "sin": torch.ones(11, 8)}, "a position is 11, but the table has 11 rows"),
        ({"lengths": torch.tensor([-1, 0])}, "a sequence has -1 keys"),
        ({"lengths": torch.tensor([3])}, "B is 1 in lengths, but 2 in"),
        ({"sin": None}, "cos is given without sin"),
        ({"v": torch.zeros(2, 3, 4, 8)}, "D is 8 in v, but 16 in"),
        ({"k": torch.zeros(2, 3, 4, 16, requires_grad=True)}, "but k requires a gradient"),
        ({"cos": torch.ones(12, 8, requires_grad=True), "sin": torch.ones(12, 8)}, "but cos requires a gradient"),
        ({"layout": "BSHD"}, "layout is 'BSHD', it takes BHTD or BTHD"),
        ({"cos": torch.ones(12, 9), "sin": torch.ones(12, 9)}, "the table turns 9 pairs, but D=16 has 8"),
    ],
)
def test_a_wrong_call_names_both_sides(change, said):
    call = dict(zip(("k_cache", "v_cache", "k", "v", "lengths", "cos", "sin"), drawn()))
    before = call["k_cache"].clone()
    with pytest.raises(ValueError, match=said):
        concat_kv(**{**call, **change})
    assert torch.equal(call["k_cache"], before)


def test_a_table_that_nobody_reads_may_be_short():
    """One of no pairs turns nothing, and no new keys ask for no row."""
    *call, lengths, cos, sin = drawn()
    plain = [x.clone() for x in call]
    concat_kv(*plain, lengths)
    concat_kv(*call, lengths, cos[:0, :0], sin[:0, :0])
    concat_kv(*call[:2], *(x[:, :, :0] for x in call[2:]), lengths, cos[:1], sin[:1])
    assert all(map(torch.equal, call, plain))


FAR = """
import importlib, torch
from rooftile.workbench import interpreter
from rooftile.workbench.inputs import LAYOUTS
kernels = importlib.import_module("rooftile.ops.concat_kv.triton_kernels")
reference = importlib.import_module("rooftile.ops.concat_kv.reference").concat_kv
torch.manual_seed(0)
far, plain = LAYOUTS["far"], lambda x: x.clone()
lengths, angles = torch.tensor([3, 1]), torch.randn(8, 4)
for wide in ((far, plain), (plain, far)):
    for tables in ((angles.cos(), angles.sin()), (None, None)):
        drawn = [torch.randn(2, rows, 5, 10) for rows in (8, 8, 2, 2)]
        want, made = (([f(x) for f, x in zip((w[0], w[0], w[1], w[1]), drawn)]) for w in ((plain, plain), wide))
        reference(*want, lengths, *tables, False)
        kernels.concat_kv(*made, lengths, *tables, False, config=kernels.CONFIGS[0])
        torch.testing.assert_close(made[:2], want[:2])
"""


def test_heads_beyond_31_bits():
    """Of caches and of what is new; the gate lays out nothing that is written."""
    done = processes.run(code=FAR, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-2000:]
