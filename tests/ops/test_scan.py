"""What the grid cannot say of scan: infinities, wrapping integers, its four directions, long rows."""

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.cuda.launch import recording
from rooftile.ops import scan

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def test_four_directions():
    x = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    expected = {(False, False): [1, 3, 6, 10], (True, False): [0, 1, 3, 6], (False, True): [10, 9, 7, 4], (True, True): [9, 7, 4, 0]}
    for (exclusive, reverse), want in expected.items():
        assert scan(x, exclusive, reverse).tolist() == want


def test_an_infinity_does_not_reach_the_sum_that_leaves_it_out():
    """An inclusive sum less the element would be inf - inf."""
    assert scan(torch.tensor([1.0, float("inf"), 2.0]), exclusive=True).tolist() == [0.0, 1.0, float("inf")]


def test_float32_sums_of_narrow_numbers():
    """Ones in bfloat16 would stop at 256."""
    assert scan(torch.ones(1000, dtype=torch.bfloat16))[-1] == 1000


@pytest.mark.parametrize("device", DEVICES)
def test_integers_wrap(device):
    x = torch.tensor([2**31 - 1, 1, 1], dtype=torch.int32, device=device)
    assert scan(x).tolist() == [2**31 - 1, -(2**31), -(2**31) + 1]


def test_the_gradient_is_the_scan_from_the_other_end():
    x = torch.zeros(6, requires_grad=True)
    weights = torch.arange(6.0)
    for exclusive in (False, True):
        for reverse in (False, True):
            (dx,) = torch.autograd.grad(scan(x, exclusive, reverse), x, weights)
            assert torch.equal(dx, scan(weights, exclusive, not reverse))


LOOK_BACK, PIPELINE = OPS["scan"].kernel("cuda.v4_look_back"), OPS["scan"].kernel("cuda.v5_pipeline")
SMALLEST = ((LOOK_BACK, {"vectors": 1, "warps": 1}), (PIPELINE, {"vectors": 1, "warps": 1, "stages": 3, "lead": 2, "per": 5}))


def label(value):
    return "x".join(str(v) for v in value.values()) if isinstance(value, dict) else getattr(value, "name", None)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kernel, config", [(k, c) for k in (LOOK_BACK, PIPELINE) for c in k.configs], ids=label)
def test_every_tile(kernel, config):
    """The simulator's own choice is the smallest tile; these are the GPU's. The rows fit in a warp, in a block, in several blocks."""
    for shape in (2, 1031), (3, 2048), (1, 40003), (2, 40004):
        x = torch.randint(-9, 10, shape, dtype=torch.int32)
        with simulator.active():
            if kernel.refuse({"x": x}):
                assert shape[1] % 4
                continue
            out, back = kernel.run(x, False, False, config=config), kernel.run(x, True, True, config=config)
        assert torch.equal(out, x.cumsum(-1).int())
        assert torch.equal(back, (x.flip(-1).cumsum(-1) - x.flip(-1)).flip(-1).int())


@pytest.mark.parametrize("kernel, config", SMALLEST, ids=label)
def test_a_look_back_over_super_groups_in_any_order(kernel, config):
    """2100 tiles of 128: three super-groups. Blocks come and wait in another order with each seed, and the bits are the same."""
    x = torch.randn(1, 2100 * 128 - 8, generator=torch.Generator().manual_seed(0))
    results = []
    for seed in None, 1, 2:
        with simulator.active(seed=seed):
            results.append(kernel.run(x, False, False, config=config))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    torch.testing.assert_close(results[0], x.double().cumsum(-1).float(), atol=2e-3, rtol=1e-5)


@pytest.mark.parametrize("kernel, config", SMALLEST, ids=label)
def test_nothing_races_where_tiles_wait_for_each_other(kernel, config):
    """The grid looks for races in the smallest case, which is rows of one tile."""
    x = torch.randn(2, 5000)
    with simulator.active("all"):
        kernel.run(x, False, True, config={**config, "warps": 2})


def test_a_row_that_one_block_would_walk_for_long_is_refused():
    call = {"x": torch.empty(1, 2**20 + 1, device="meta"), "exclusive": False, "reverse": False}
    with recording():
        assert "N=1048577" in str(OPS["scan"].kernel("cuda.v2_blelloch").refuse(call))
        assert LOOK_BACK.refuse(call) is None


@pytest.mark.gpu
@pytest.mark.parametrize("n", [2**26, 2**31 + 5])
def test_one_very_long_row(n):
    """Small integers, whose sums are exact in int32."""
    x = torch.randint(-1, 2, (n,), device="cuda", dtype=torch.int32)
    out = scan(x)
    assert out[-1] == x.sum() and torch.equal(out[:100000], x[:100000].cumsum(0).int())
    middle = n // 2
    assert torch.equal(out[middle : middle + 1000] - out[middle - 1], x[middle : middle + 1000].cumsum(0).int())
