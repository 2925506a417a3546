"""What the grid cannot say of transpose: bits are kept, twice is nothing, views come out dense."""

import re
from pathlib import Path

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.ops import transpose

PAGE = Path(__file__).parents[2] / "src" / "rooftile" / "ops" / "transpose" / "README.md"
RUNGS = [k for k in OPS["transpose"].kernels if k.sources]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_every_bit_is_kept(device):
    x = torch.arange(-(2**15), 2**15, device=device).to(torch.int16).view(torch.float16).view(512, 128)  # NaNs and subnormals too
    assert torch.equal(transpose(x).view(torch.int16), x.view(torch.int16).t())
    assert torch.equal(transpose(transpose(x)).view(torch.int16), x.view(torch.int16))


@pytest.mark.parametrize("device", DEVICES)
def test_views_come_out_dense(device):
    x = torch.randn(4, 6, 10, 8, device=device)
    for view in (x, x.mT, x[:, 1:5, ::2], x.permute(1, 0, 3, 2), x[:, :1].expand(4, 3, 10, 8)):
        y = transpose(view)
        assert y.is_contiguous() and torch.equal(y, view.mT)


def test_a_row_has_nothing_to_turn():
    with pytest.raises(ValueError, match=r"x has 1 axes \[3\], needs at least 2"):
        transpose(torch.zeros(3))


def requests(kernel, dtype):
    """Sectors read and written, wavefronts stored and loaded a request, on whole tiles; - where a rung has none."""
    x = torch.randn(128, 256).to(dtype)
    with simulator.active("all") as reports:
        assert torch.equal(kernel.bound(kernel.heuristic({"x": x}))(x), x.t())
    cost = {(a.space, a.store): a.per_request for a in reports[0].accesses}
    wanted = [("global", False), ("global", True), ("shared", True), ("shared", False)]
    return [f"{cost[key]:g}" if key in cost else "-" for key in wanted]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_page_shows_what_the_simulator_counts(dtype):
    name = str(dtype).removeprefix("torch.")
    said = {m[1]: m[2].split(" | ") for m in re.finditer(rf"^\| `(v\w+)` \| {name} \| (.*) \|$", PAGE.read_text(), re.M)}
    assert said == {k.name.removeprefix("cuda."): requests(k, dtype) for k in RUNGS}
    assert [said[v][3] for v in ("v2_shared", "v3_padded", "v4_swizzled")] == ["32" if dtype == torch.float32 else "16", "1", "1"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("config", RUNGS[0].configs, ids=lambda c: "-".join(map(str, c.values())))
def test_every_tile_of_the_vector_rung(config, dtype):
    """Ragged on both sides, several tiles and groups of them, three matrices; no bank conflict in any."""
    x = torch.arange(3 * 136 * 264).view(3, 136, 264).to(dtype)
    with simulator.active("checks"):
        assert torch.equal(RUNGS[0].bound(config)(x), x.mT)
    whole = torch.ones(256, 256, dtype=dtype)
    with simulator.active("all") as reports:
        RUNGS[0].bound(config)(whole)
    assert {a.per_request for a in reports[0].accesses if a.space == "shared"} == {4}


@pytest.mark.parametrize(
    "x, why",
    [
        (torch.zeros(68, 36, dtype=torch.float16), "N is 68, and it moves 8 elements at a time"),
        (torch.zeros(64, 64).t(), "neighbours in a row of x lie 64 elements apart, and it reads 4 of them at a time"),
        (torch.zeros(64, 66)[:, :64], "rows of x lie 66 elements apart, and it reads 4 at a time"),
        (torch.zeros(64 * 64 + 1)[1:].view(64, 64), "x begins 4 bytes past a multiple of 16, and it reads 16 bytes at a time"),
    ],
)
def test_what_vectors_cannot_take_is_refused_with_both_numbers(x, why):
    with simulator.active():
        assert RUNGS[0].refuse({"x": x}) == why
