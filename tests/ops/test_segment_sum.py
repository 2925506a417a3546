"""What the grid cannot say of segment_sum: trailing axes, rows in no segment, offsets that are wrong."""

import contextlib
import itertools
import sys
from itertools import pairwise

import pytest
import torch

from faulty_kernels import orders, rewritten, some, without
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.cuda.launch import recording
from rooftile.ops import segment_sum
from rooftile.ops.segment_sum import cuda_kernels, runs_kernels, spread_kernels, warps_kernels
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
    with pytest.raises(ValueError, match="x must be a tensor, got list"):
        segment_sum([1.0], torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="x has 0 axes"):
        segment_sum(torch.tensor(1.0), torch.tensor([0, 1]))


def adds_up(kernel, config, lengths, columns):
    """In both widths of numbers and of offsets, segments of these lengths between 5 rows in none and 7."""
    offsets = torch.tensor([5, *lengths]).cumsum(0)
    x = torch.randint(-9, 10, (5 + sum(lengths) + 7, *columns)).float()
    want = torch.stack([x[a:b].sum(0) for a, b in pairwise(offsets.tolist())])
    with simulator.active(), poisoned():
        assert torch.equal(kernel.run(x, offsets, config=config), want)
        assert torch.equal(kernel.run(x.bfloat16(), offsets.int(), config=config), want.bfloat16())


@pytest.fixture
def chunks_of_16_rows(monkeypatch):
    """Of cuda.v3_balanced. As a simulated device holds 2 lanes, all rows were one chunk, and what these tests are there for was never run."""
    monkeypatch.setattr(cuda_kernels, "resident", lambda x, lanes: x.numel())


BALANCED = OPS["segment_sum"].kernel("cuda.v3_balanced")
SHAPES = {"numbers": (1,), "narrow": (4,), "one strip": (128,), "ragged": (35,), "16 lanes": (64,)}


@pytest.mark.sampled(13)
@pytest.mark.parametrize("columns", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("config", BALANCED.configs, ids=lambda c: f"{c['rows']}x{c['lanes']}")
def test_balanced_chunks(columns, config, chunks_of_16_rows):
    """Chunks of 16 rows: a segment of 112 chunks, which a block adds up together; ones that begin, end and lie in a chunk or at its border;
    30 empty ones in a row, which are not walked one by one; rows in none."""
    lengths = [1803, 0, 40, 3, 16, 5, 13, *[0] * 30, 7, 130, 0]  # 5 + 1803 is a multiple of 16
    adds_up(BALANCED, config, lengths, columns)


RUNS = OPS["segment_sum"].kernel("cuda.v6_runs")
CUTS = {
    "of all lengths": [1803, 0, 40, 3, 16, 5, 13, *[0] * 30, 7, 130, 0],
    "one row": [1] * 200,
    "none and few": [0, 5, 0],
    "as long as runs": [64] * 30,
}


@pytest.mark.sampled(13)
@pytest.mark.parametrize("lengths", CUTS.values(), ids=list(CUTS))
@pytest.mark.parametrize("columns", [*SHAPES.values(), (256,)], ids=[*SHAPES, "two strips"])
@pytest.mark.parametrize("config", [*RUNS.configs[:3], {"rows": 4, "runs": 4, "cut": 0}], ids=lambda c: f"{c['rows']}x{c['runs']}")
def test_runs_of_rows(config, columns, lengths):
    """Segments over groups and runs and within both; rows in none."""
    adds_up(RUNS, config, lengths, columns)


@pytest.mark.parametrize("runs, columns", [(18, 256), (140, 128), (530, 64)])
def test_a_segment_in_more_runs_than_8_lanes_add(runs, columns):
    """Runs of 8 groups with 16 rows each, or 16: all 64 groups of lanes of a block of `join` add them, of 530 some in a second turn; columns of two strips a block."""
    rows = runs * 16 * 8 * (128 // min(columns, 128))
    offsets = torch.tensor([3, 20, 20 + rows, 20 + rows + 128])
    x = torch.randint(-9, 10, (int(offsets[-1]), columns)).float()
    assert many_runs(x, offsets)


def many_runs(x, offsets, *how):
    with simulator.active(*how), poisoned():
        got = RUNS.run(x, offsets, config={"rows": 4, "runs": 4096, "cut": 0})
    return torch.equal(got, OPS["segment_sum"].spec.reference(x, offsets))


def test_no_group_of_a_join_races():
    assert many_runs(torch.ones(3000, 128), torch.tensor([0, 5, 5, 2700, 2980]), "all")


@pytest.mark.gpu
def test_gpu_who_joins_runs_has_waited():
    """What goes on behind a run lies where the last call's did, or anything: read too soon it is another segment's, and places that there are not."""
    x = torch.randint(-9, 10, (2**18, 128), device="cuda").float()
    before = torch.nn.functional.pad(x.double().cumsum(0), (0, 0, 1, 0))
    cuts = [torch.tensor([0, *range(i + 1, 2**18, 2**18 // (i % 7 + 1)), 2**18], device="cuda") for i in range(60)]
    made = [RUNS.bound(RUNS.pick({"x": x}))(x, cut) for cut in cuts]
    assert all(torch.equal(out, (before[cut[1:]] - before[cut[:-1]]).float()) for out, cut in zip(made, cuts, strict=True))


RUNS_FAULTS = {  # as it stands, and wrong
    "i > from ? i : runs + from": "i",
    "c += EACH * step": "c += EACH * EACH * step",
    "sFrom[m] + group": "sFrom[m] + group + 1",
    "if (!(vain >> i & 1)) continue;": "continue;",
    "i_strip += gridDim.y * (long long)(LANES * WIDTH)": "i_strip += N",
    "other < GROUPS; ++other)\n#pragma unroll\n          for (int n": "other < WARP; ++other)\n#pragma unroll\n          for (int n",
    "from + (before - 1) * step + 1 : 0": "from + before * step + 1 : 0",
    "low + k * LANES + l < high && seen": "seen",
}


@pytest.mark.parametrize("stands", some(RUNS_FAULTS, *list(RUNS_FAULTS)[::4]))
def test_a_fault_of_runs_is_seen(stands, tmp_path, monkeypatch):
    fault = rewritten(runs_kernels.RUNS, stands, RUNS_FAULTS[stands], tmp_path)
    monkeypatch.setattr(runs_kernels, "RUNS", fault)
    lengths = torch.tensor([4, *[17] * 300, 900, *[0] * 40, 128 * 100, 60, 128 * 540, 3, 0, 700])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    with contextlib.suppress(simulator.Found):
        assert not many_runs(torch.randint(-9, 10, (int(offsets[-1]), 160)).float(), offsets)


@pytest.mark.parametrize("cut", [1, 2, 9])
@pytest.mark.parametrize(
    "lengths", [[3, 4100, 500, 0, 388], [0, 2048, 1024, 128, 128, 128, 640, 5], [17] * 290], ids=("over", "at", "short")
)
def test_runs_of_which_the_last_are_cut(lengths, cut):
    """Runs of 512 rows, 2 for each of two multiprocessors, or 4 or all, cut in four; segments over the border between the two kinds, at it, and of either alone."""
    offsets = torch.tensor([0, *itertools.accumulate(lengths)])
    x = torch.randint(-9, 10, (int(offsets[-1]) + 7, 128)).float()
    with simulator.active(), poisoned():
        got = RUNS.run(x, offsets, config={"rows": 4, "runs": 10, "cut": cut})
    assert torch.equal(got, OPS["segment_sum"].spec.reference(x, offsets))


@pytest.mark.parametrize(
    "name, columns", [("v6_runs", 128), ("v6_runs", 4), ("v3_balanced", 128), ("v4_numbers", 1), ("v5_laid", 1), ("v7_warps", 1)]
)
@pytest.mark.parametrize("offsets", [[0, 5, 400], [0, 5, 9, 400], [-3, 5, 300], [0, 9, 7, 300]], ids=str)
def test_of_a_segment_that_is_none_the_sum_is_nan(name, columns, offsets, monkeypatch, chunks_of_16_rows):
    """On a GPU nobody looks at offsets before: a segment that ends beyond x, begins before it, or ends before it begins; in x of several runs."""
    for module in ("cuda_kernels", "runs_kernels", "warps_kernels"):
        monkeypatch.setattr(sys.modules[f"rooftile.ops.segment_sum.{module}"], "check_offsets", lambda offsets, rows: None)
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)  # what nobody writes is not NaN
    kernel, x = OPS["segment_sum"].kernel(f"cuda.{name}"), torch.ones(300, columns)
    with simulator.active():
        got = kernel.run(x, torch.tensor(offsets), config=kernel.configs[0])
    for e, (begin, end) in enumerate(pairwise(offsets)):
        right = 0 <= begin <= end <= 300
        assert got[e].isnan().all() if not right else offsets != sorted(offsets) or (got[e] == end - begin).all(), (e, got[e])


NUMBERS, NUMBERS_BACKWARD = OPS["segment_sum"].kernel("cuda.v4_numbers"), OPS["segment_sum_backward"].kernel("cuda.v4_numbers")
LAID, WARPS = OPS["segment_sum"].kernel("cuda.v5_laid"), OPS["segment_sum"].kernel("cuda.v7_warps")
EACH = pytest.mark.parametrize("kernel", [NUMBERS, LAID, WARPS], ids=lambda k: k.name)
LONG = {"each": 8, "per_sm": 1, "stages": 3}  # of 40000 numbers 10 tiles a block, whose stages go round
WALKS = {"block": 128, "per_sm": 8}  # of 40000 numbers 3 tiles a warp and 4 blocks, the last with two warps that have none
TILES = {  # offsets into M numbers
    "one": lambda m: torch.tensor([0, m]),
    "a few numbers each": lambda m: torch.cat([torch.zeros(1).long(), (torch.rand(m) < 0.5).nonzero()[:, 0], torch.tensor([m] * 3)]),
    "hundreds are empty": lambda m: (
        torch.tensor([3] * 200 + [m // 2 + 3] * 300 + [m // 2 + 4] * 5 + [m - 1] * 150).clamp(max=m).sort().values
    ),
    "as long as tiles": lambda m: torch.arange(0, m + 1, 2048),
    "few numbers have one": lambda m: torch.tensor([m // 3, m // 3 + 1, m // 2 + 1]).clamp(max=m),
    "of any length": lambda m: torch.randint(0, m + 1, (m // 50 + 2,)).sort().values,
}


@pytest.mark.sampled(13)
@pytest.mark.sampled(11)
@pytest.mark.parametrize("offsets", TILES.values(), ids=list(TILES))
@pytest.mark.parametrize(
    "kernel, config",
    [*((k, c) for k in (NUMBERS, LAID, WARPS) for c in k.configs), (LAID, LONG), (WARPS, WALKS)],
    ids=lambda x: getattr(x, "name", None) or "x".join(map(str, x.values())),
)
def test_rows_of_one_number(kernel, config, offsets):
    """Stretches of one and of several tiles; segments over all of them, over their borders, and more in a tile than are looked at in a turn."""
    torch.manual_seed(0)
    for m, dtype in ((1, torch.float32), (4096, torch.bfloat16), (12289, torch.float32), (40000, torch.float32)):
        cut = offsets(m)
        x = torch.randint(-2, 3, (m, 1)).to(dtype)
        want = OPS["segment_sum"].spec.reference(x.float(), cut).to(dtype)
        with simulator.active(), poisoned():
            assert torch.equal(kernel.run(x, cut.int(), config=config), want)
            assert torch.equal(kernel.run(x, cut, config=config), want)


def around(m):
    """Offsets beside every border of a vector, a row, a tile, a warp's stretch and a block's."""
    places = [0, 1, 4, 8, 124, 128, 252, 256, 512, 1020, 1024, 2048, 3072, 3 * 4096, 6 * 4096, 39 * 1024, m]
    return torch.tensor(sorted({min(max(p + d, 0), m) for p in places for d in (-1, 0, 1)}))


BORDERS = {
    "around borders": around,
    "at borders": lambda m: torch.tensor([0, *range(0, m, 1024), m]),
    "over blocks, from the last number of one on": lambda m: torch.tensor([0, 7, 12287, m - 1, m]),
    "each number": lambda m: torch.arange(m + 1),
    "64 in a tile, none behind": lambda m: torch.tensor([*range(0, 1024, 16), m - 5]),
    "70 equal ones behind 64 others": lambda m: torch.tensor([*range(64), *[64] * 70, *range(65, 400)]),
    "all at the end": lambda m: torch.tensor([0, *range(m - 1000, m)]),  # where few begin, far before where as many of like lengths would
    "33 equal ones, and 1100": lambda m: torch.tensor([0, *[500] * 33, *[5 * 1024] * 1100, *range(6000, 7000, 3)]),
}


def warps(borders, m, dtype, level="checks", seed=None, config=WALKS):
    """Whether the sums are right; poisoned() makes what nobody writes wrong."""
    torch.manual_seed(0)
    cut, x = BORDERS[borders](m), torch.randint(-2, 3, (m, 1)).to(dtype)
    with simulator.active(level, seed=seed), poisoned():
        got = WARPS.run(x, cut, config=config)
    return torch.equal(got, OPS["segment_sum"].spec.reference(x.float(), cut).to(dtype))


@pytest.mark.parametrize("borders", BORDERS)
def test_warps_at_every_border(borders):
    """40003 numbers are 39 tiles and a ragged one, which ends within a vector; in bfloat16 one more, of 5 numbers."""
    assert warps(borders, 40003, torch.float32) and warps(borders, 40965, torch.bfloat16)


@pytest.mark.parametrize("m", [1, 3, 5, 127, 1023, 1024, 1025, 2047, 2048, 2049, 3075])
def test_warps_of_few_numbers(m):
    for config in (WARPS.configs[1], {"block": 128, "per_sm": 1}):
        x, cut = torch.arange(m).remainder(5).half()[:, None], torch.tensor([0, m // 3, m // 3, m])
        with simulator.active(), poisoned():
            got = WARPS.run(x, cut, config=config)
        assert torch.equal(got, OPS["segment_sum"].spec.reference(x, cut))


@pytest.mark.parametrize("borders, m", [("around borders", 40003), ("33 equal ones, and 1100", 9001)])
def test_no_lane_of_a_warp_races(borders, m):
    assert warps(borders, m, torch.float32, "all") and all(warps(borders, m, torch.bfloat16, "values", seed) for seed in (1, 2))


FAULTS = {  # as it stands, and wrong
    "sOther[l] = 0;": "",
    "if (!(any[r] & before)) prior": "prior",
    "carry = any[r] ? all : carry + all;": "carry = all;",
    "any[r] & (before * 2 + 1) | 1": "any[r] & before | 1",
    "if (e == zero)": "if (false)",
    "from = begun + LOOK * WARP;": "from = begun + LOOK * WARP + WARP;",
    "while (again) {": "if (false) {",
    "&& one - tile == marked": "",
    "max(from + WARP, ": "max(from + 2 * WARP, ",
    "(only ? sPrior[w][v] : 0.0f)": "sPrior[w][v]",
    " - (1u << r))": " - 1u)",
    "if (l == 0) prior = 0.0f;": "",
    "if (i + PART <= left)": "if (i < left)",
    "if (i + k < left)": "if (i + k <= left)",
    "count - here >= 2 * SIZE": "count - here > 2 * SIZE",
    "if (!any) sHead[w] = carry;": "",
    "on = !sAny[other]": "on = false",
    "right && at[0] <= end": "right && at[0] < end",
    "if (last || !sAny[other - 1])": "if (last)",
    "place[k] == last && (k > 0 || l > 0) ?": "false ?",
    "(k > 0 || l > 0)": "true",
    "if (l == 0) last = other;": "",
    "next = (blockIdx.x * WARPS + w) * share": "next = blockIdx.x * WARPS * share",
    "for (; next < until;": "for (; false;",
    "wrong = __syncthreads_or(wrong);": "",
    "at <= E && gOffsets[at] <= i_m": "at <= E && gOffsets[at] < i_m",
    "if (open.z == b + 1) gOut": "if (false) gOut",
    "open.z > b + 1)": "open.z > b + 3)",
    "c <= to;": "c < to;",
    "c + k * WARP <= to ?": "c + k * WARP < to ?",
    "bits >> (r * WIDTH + i) & 1": "bits >> (r * WIDTH + k) & 1",
}


TELLING = [
    ("around borders", 40003, torch.float32),
    ("33 equal ones, and 1100", 9001, torch.float32, "all"),
    ("each number", 5000, torch.bfloat16),
    ("70 equal ones behind 64 others", 2000, torch.float32),
    ("over blocks, from the last number of one on", 40003, torch.float32),
    ("around borders", 40003, torch.float32, "all"),
]


@pytest.fixture
def faulty(monkeypatch):
    def is_faulty(source):
        monkeypatch.setattr(warps_kernels, "WARPS", source)
        try:
            return not all(warps(*case) for case in TELLING)
        except simulator.Found:
            return True

    return is_faulty


@pytest.mark.parametrize("stands", some(FAULTS, *list(FAULTS)[::5]))
def test_a_fault_of_warps_is_seen(faulty, tmp_path, stands):
    assert faulty(rewritten(warps_kernels.WARPS, stands, FAULTS[stands], tmp_path))


@pytest.mark.parametrize("offsets, stands, instead", [
    ([0, 5000, 100, 6000, 5000 - 2**32, 7000, 2**40, 8000, -100, 9000], "in & from >= 0 ?", "in ?"),
    ([0, 5000, 2**40, 2**40 + 1], "tell(sum, right ?", "tell(sum, true ?"),
], ids=["a place before the tile", "a block that is none"])  # fmt: skip
def test_warps_write_nowhere_else_where_offsets_are_wrong(offsets, stands, instead, tmp_path, monkeypatch):
    """On a GPU nobody looks: by a number of a tile before, by 2^32 and beside all numbers; of wrong segments the sum is NaN. Seen red: `instead`."""
    monkeypatch.setattr(warps_kernels, "check_offsets", lambda offsets, rows: None)
    wrong = [not 0 <= begin <= end <= 9000 for begin, end in pairwise(offsets)]

    def sums():
        with simulator.active():
            return WARPS.run(torch.ones(9000, 1), torch.tensor(offsets), config={"block": 128, "per_sm": 1})[:, 0]

    assert any(wrong) and sums()[wrong].isnan().all()
    monkeypatch.setattr(warps_kernels, "WARPS", rewritten(warps_kernels.WARPS, stands, instead, tmp_path))
    with pytest.raises(simulator.Found):
        sums()


NEEDED = orders(warps_kernels.WARPS.text)


@pytest.mark.parametrize("line", some(NEEDED, *NEEDED[::3]))
def test_no_barrier_of_warps_can_be_taken_away(faulty, tmp_path, line):
    assert faulty(without(warps_kernels.WARPS, line, tmp_path))


@pytest.mark.parametrize("offsets", TILES.values(), ids=list(TILES))
@pytest.mark.parametrize("config", NUMBERS_BACKWARD.configs, ids=lambda c: f"{c['each']}x{c['per_sm']}")
def test_gradients_of_rows_of_one_number(config, offsets):
    torch.manual_seed(0)
    for m, dtype in ((1, torch.float32), (4096, torch.bfloat16), (12289, torch.float32), (40000, torch.float32)):
        cut = offsets(m)
        x, dout = torch.empty(m, 1, dtype=dtype), torch.randint(-9, 9, (cut.numel() - 1, 1)).to(dtype)
        with simulator.active(), poisoned():
            got = NUMBERS_BACKWARD.run(dout, x, cut, config=config)
        assert torch.equal(got, OPS["segment_sum_backward"].spec.reference(dout, x, cut))


@EACH
def test_of_no_numbers_all_sums_are_zero(kernel):
    """`join` looks at offsets before the launch before it has ended: without one they might be on their way. Seen red: no block for no numbers."""
    x, cut, config = torch.empty(0, 1), torch.zeros(6).int(), kernel.configs[0]
    with simulator.active(), poisoned():
        assert torch.equal(kernel.run(x, cut, config=config), torch.zeros(5, 1))
    with recording() as seen:
        kernel.run(x, cut, config=config)
    assert [w.instance.partition("<")[0] for w in seen] == ["chunks", "join"]


@EACH
def test_a_nan_stays_in_its_segment(kernel):
    x, cut = torch.ones(9000, 1), torch.tensor([0, 10, 5000, 8999, 9000])
    x[20] = torch.nan
    with simulator.active():
        out = kernel.run(x, cut, config=kernel.configs[0])
    assert out[1].isnan() and torch.equal(out[[0, 2, 3]], torch.tensor([[10.0], [3999.0], [1.0]]))


def test_what_rows_of_one_number_are_not():
    call = {"x": torch.empty(8, 3), "offsets": torch.tensor([0, 8])}
    assert NUMBERS.refuse(call) == LAID.refuse(call) == WARPS.refuse(call) == "rows of x have 3 numbers, it takes rows of 1"
    assert NUMBERS_BACKWARD.refuse({"dout": torch.empty(1, 3), **call}) == "rows of x have 3 numbers, it takes rows of 1"
    assert "x begins 4 bytes past a multiple of 16" in str(NUMBERS.refuse({**call, "x": torch.empty(9)[1:].view(8, 1)}))


SPREAD = [(k, c) for k in OPS["segment_sum_backward"].kernels if k.name in ("cuda.v2_warp", "cuda.v3_balanced") for c in k.configs or ({},)]


@pytest.mark.parametrize("columns", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("kernel, config", SPREAD, ids=lambda x: getattr(x, "name", None) or str(*x.values()))
def test_gradients_reach_every_row(kernel, config, columns):
    lengths = [603, 0, 40, 3, 16, 5, 13, *[0] * 30, 7, 130, 0]
    offsets = torch.tensor([5, *lengths]).cumsum(0)
    x, dout = torch.empty(5 + sum(lengths) + 7, *columns), torch.randn(len(lengths), *columns)
    want = OPS["segment_sum_backward"].spec.reference(dout, x, offsets)
    with simulator.active(), poisoned():
        assert torch.equal(kernel.bound(config)(dout, x, offsets), want)
        assert torch.equal(kernel.bound(config)(dout.half(), x.half(), offsets.int()), want.half())


def test_many_numbers_of_4_bytes_come_in_three_waves():
    def per_sm(m, dtype):
        return WARPS.pick({"x": torch.empty(m, 1, dtype=dtype, device="meta")})["per_sm"]

    assert [per_sm(m, torch.float32) for m in (2**25 - 1, 2**25)] == [24, 72] and per_sm(2**26, torch.bfloat16) == 24


def test_few_numbers_are_not_laid_down():
    def call(m):
        return {"x": torch.empty(m, 1, device="meta"), "offsets": torch.tensor([0, m])}

    assert LAID.declines(call(2**23)) is None
    assert LAID.declines(call(2**23 - 1)) == "x has 8388607 numbers, and to have more tiles on their way pays from 8388608"


def test_nothing_races_where_stages_go_round():
    cut = torch.tensor([0, 3, 3, 2100, 2101, *range(5000, 5600, 3), 19001])
    for dtype in (torch.float32, torch.bfloat16):
        with simulator.active("all"):
            out = LAID.run(torch.ones(20000, 1, dtype=dtype), cut, config=LONG)
        assert torch.equal(out[:, 0], cut.diff().to(dtype))


def test_nothing_races_in_a_tile():
    cut = torch.tensor([0, 3, 3, 2100, 2101, 9000])
    config = {"each": 8, "per_sm": 1}  # several tiles a block
    with simulator.active("all"):
        out = NUMBERS.run(torch.ones(9000, 1), cut, config=config)
        dx = NUMBERS_BACKWARD.run(torch.arange(1.0, 6)[:, None], torch.empty(9000, 1), cut, config=config)
    assert torch.equal(out[:, 0], cut.diff().float()) and torch.equal(dx[:, 0], torch.arange(1.0, 6).repeat_interleave(cut.diff()))


def test_nothing_races_where_a_block_adds_a_long_segment(chunks_of_16_rows):
    with simulator.active("all"):
        out = BALANCED.run(torch.ones(1500, 8), torch.tensor([0, 1400, 1500]), config=BALANCED.configs[0])
    assert torch.equal(out, torch.tensor([[1400.0] * 8, [100.0] * 8]))


@pytest.mark.gpu
def test_a_segment_that_is_none_is_nan_on_a_gpu():
    x = torch.ones(8, 3, device="cuda")
    out = segment_sum(x, torch.tensor([0, 4, 9], device="cuda"))
    assert torch.equal(out[0], torch.full((3,), 4.0, device="cuda")) and bool(out[1].isnan().all())


SPREADS = OPS["segment_sum_backward"].kernel("cuda.v8_spread")
SPREAD_WALKS = {"block": 128, "tiles": 3}  # of 40000 numbers 4 blocks, the last with two warps that have none
SPREAD_FAULTS = {  # as it stands, and wrong
    "at != other": "true",
    "at >= tile &&": "",
    "begun + __popc(all & before) + 1": "begun + __popc(all & before)",
    "    begun += __popc(all);": "    begun = __popc(all);",
    "again = found == WARP;": "again = false;",
    "gOffsets, E, same) - 1)": "gOffsets, E, same))",
    "sBits[w][l].y = sum - mine;": "sBits[w][l].y = sum;",
    "(1u << from) - 1": "(2u << from) - 1",
    "if (size == SIZE)": "if (size > 0)",
    "cursor <= E ? gDout[cursor - 1]": "cursor <= E ? gDout[cursor - 2 * (cursor > 1)]",
    "    if (l == 0) sBegun[w][0] = open;": "",
}


def spread(borders, m, dtype, level="checks", seed=None, config=SPREAD_WALKS):
    """Whether the gradients are right."""
    cut = BORDERS[borders](m)
    x, dout = torch.empty(m, 1, dtype=dtype), torch.randint(-9, 9, (cut.numel() - 1, 1)).to(dtype)
    with simulator.active(level, seed=seed), poisoned():
        got = SPREADS.run(dout, x, cut, config=config)
    return torch.equal(got, OPS["segment_sum_backward"].spec.reference(dout, x, cut))


@pytest.mark.parametrize("borders", BORDERS)
def test_gradients_by_warps_at_every_border(borders):
    assert spread(borders, 40003, torch.float32) and spread(borders, 40965, torch.bfloat16)


def test_gradients_by_warps_where_offsets_fall():
    """On a GPU nobody looks; nothing is written beside the gradient and shared memory."""
    m = 3000
    cut, dout = torch.tensor([5, 3] * 2000), torch.ones(3999, 1)
    with simulator.active():
        assert SPREADS.run(dout, torch.empty(m, 1), cut, config=SPREAD_WALKS).shape == (m, 1)


def test_gradients_by_warps_count_segments_in_32_bits():
    offsets = torch.empty(1, dtype=torch.int64).expand(2**31 + 1)
    with simulator.active():
        call = {"dout": torch.ones(1, 1), "x": torch.ones(8, 1), "offsets": offsets}
        assert SPREADS.objection(call) == "there are 2147483648 segments, and it counts them in 32 bits"
        assert SPREADS.objection(call | {"offsets": offsets[:-1]}) is None
    tiles = [
        SPREADS.heuristic({"x": torch.empty(m, 1, dtype=t, device="meta")})["tiles"]
        for m, t in ((1 << 26, torch.float32), (1 << 26, torch.bfloat16), (5000, torch.float32))
    ]
    assert tiles == [3, 4, 1]


SPREAD_NEEDED = orders(spread_kernels.SPREAD.text)


@pytest.fixture
def spread_faulty(monkeypatch):
    def is_faulty(source):
        monkeypatch.setattr(spread_kernels, "SPREAD", source)
        cases = [(name, 9001, torch.float32) for name in BORDERS] + [("around borders", 40003, torch.float32, "all")]
        try:
            return not all(spread(*case) for case in cases)
        except simulator.Found:
            return True

    return is_faulty


@pytest.mark.thorough
@pytest.mark.parametrize("stands", SPREAD_FAULTS)
def test_a_fault_of_gradients_by_warps_is_seen(spread_faulty, tmp_path, stands):
    assert spread_faulty(rewritten(spread_kernels.SPREAD, stands, SPREAD_FAULTS[stands], tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize("line", SPREAD_NEEDED)
def test_no_barrier_of_gradients_by_warps_can_be_taken_away(spread_faulty, tmp_path, line):
    assert spread_faulty(without(spread_kernels.SPREAD, line, tmp_path))
