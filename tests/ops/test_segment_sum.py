"""What the grid cannot say of segment_sum: trailing axes, rows in no segment, offsets that are wrong."""

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.ops import segment_sum
from rooftile.workbench.check import poisoned

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0,)])
def test_trailing_axes(shape, device):
    x = torch.randn(10, *shape, device=device, requires_grad=True)
    offsets = torch.tensor([0, 4, 4, 9], dtype=torch.int32, device=device)
    out = segment_sum(x, offsets)
    expected = torch.stack([x[:4].sum(0), torch.zeros_like(x[0]), x[4:9].sum(0)])
    torch.testing.assert_close(out, expected)
    (dx,) = torch.autograd.grad(out, x, torch.ones_like(out))
    assert torch.equal(dx, torch.ones_like(x).index_fill(0, torch.tensor(9, device=device), 0))


def test_float32_sums_of_narrow_numbers():
    """Ones in bfloat16 would stop at 256."""
    assert segment_sum(torch.ones(1000, dtype=torch.bfloat16), torch.tensor([0, 1000])) == 1000


def test_offsets_of_both_widths():
    x, offsets = torch.randn(9, 4), torch.tensor([0, 2, 7, 9])
    assert torch.equal(segment_sum(x, offsets), segment_sum(x, offsets.int()))


def test_messages_have_both_numbers():
    x = torch.zeros(4, 2)
    with pytest.raises(ValueError, match="an offset is 5, but x has 4 rows"):
        segment_sum(x, torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="an offset is -1, but x has 4 rows"):
        segment_sum(x, torch.tensor([-1, 4]))
    with pytest.raises(ValueError, match="segment 1 ends at 1, before it begins at 3"):
        segment_sum(x, torch.tensor([0, 3, 1, 4]))
    with pytest.raises(ValueError, match="offsets has 0 elements, needs 1 at least"):
        segment_sum(x, torch.empty(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="offsets is float32, takes int32, int64"):
        segment_sum(x, torch.tensor([0.0, 4.0]))
    with pytest.raises(ValueError, match="x has 0 axes"):
        segment_sum(torch.tensor(1.0), torch.tensor([0, 1]))


BALANCED = OPS["segment_sum"].kernel("cuda.v3_balanced")
SHAPES = {"numbers": (1,), "narrow": (4,), "one strip": (128,), "ragged": (35,), "16 lanes": (64,)}


@pytest.mark.parametrize("columns", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("config", BALANCED.configs, ids=lambda c: f"{c['rows']}x{c['lanes']}")
def test_balanced_chunks(columns, config):
    """Chunks of 16 rows: a segment of 112 chunks, which a block adds up together; ones that begin, end and lie in a chunk or at its border;
    30 empty ones in a row, which are not walked one by one; rows in none."""
    lengths = [1803, 0, 40, 3, 16, 5, 13, *[0] * 30, 7, 130, 0]  # 5 + 1803 is a multiple of 16
    offsets = torch.tensor([5, *lengths]).cumsum(0)
    x = torch.randint(-9, 10, (5 + sum(lengths) + 7, *columns)).float()
    want = torch.stack([x[a:b].sum(0) for a, b in zip(offsets.tolist(), offsets[1:].tolist())])
    with simulator.active(), poisoned():
        assert torch.equal(BALANCED.run(x, offsets, config=config), want)
        assert torch.equal(BALANCED.run(x.bfloat16(), offsets.int(), config=config), want.bfloat16())


def test_nothing_races_where_a_block_adds_a_long_segment():
    with simulator.active("all"):
        out = BALANCED.run(torch.ones(1500, 8), torch.tensor([0, 1400, 1500]), config=BALANCED.configs[0])
    assert torch.equal(out, torch.tensor([[1400.0] * 8, [100.0] * 8]))


@pytest.mark.gpu
def test_a_segment_that_is_none_is_nan_on_a_gpu():
    x = torch.ones(8, 3, device="cuda")
    out = segment_sum(x, torch.tensor([0, 4, 9], device="cuda"))
    assert torch.equal(out[0], torch.full((3,), 4.0, device="cuda")) and bool(out[1].isnan().all())
