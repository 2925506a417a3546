"""Our own product for Hopper in the simulator: factors however they lie, every edge, and that no line that orders anything can be taken away."""

import itertools

import pytest
import torch

from faulty_kernels import orders, rewritten, without
from rooftile.core.kernel import OPS
from rooftile.cuda import compile as compiler
from rooftile.cuda import simulator
from rooftile.cuda.source import INCLUDE, read
from rooftile.ops._shared import hopper_products as products

HEADER = INCLUDE / "rooftile" / "product.cuh"
ALONG, ACROSS = "along", "across"  # how a factor's lines lie: along the sums or across them
LAYOUTS = tuple(itertools.product((ALONG, ACROSS), repeat=2))
SMALL = {"BLOCK_N": 128, "BLOCK_K": 32, "STAGES": 3, "LAG": 1, "GROUP": 4}  # everything a large tile has, in an eighth of the time
SIZE = (136, 200, 72)  # four tiles of SMALL, two a block, of three steps each; M and K end 8 past a tile or a step, N 8 past a panel
SEEDS = range(3, 7)
ROOM = 8  # between rows, and behind the last


def inside(t, fill):
    """The same values in a larger matrix full of something else: what is past an edge shall not be read as a zero that was there anyway."""
    large = t.new_full((t.shape[0] + ROOM, t.shape[1] + ROOM), fill)
    part = large[: t.shape[0], : t.shape[1]]
    part.copy_(t)
    return part


def lying(t, how):
    """A factor whose columns are summed over, with its lines along them or across."""
    return inside(t, float("nan")) if how == ALONG else inside(t.t(), float("nan")).t()


def problem(size, layout, dtype=torch.bfloat16):
    (m, n, k), gen = size, torch.Generator().manual_seed(sum(size))
    left, right, bias = (torch.randn(s, generator=gen).to(dtype) for s in ((m, k), (n, k), (n,)))
    out = inside(torch.zeros(m, n, dtype=dtype), 7)
    return lying(left / k**0.5, layout[0]), lying(right, layout[1]).t(), bias, out


def right(layout, config=SMALL, level="checks", size=SIZE, dtype=torch.bfloat16, seed=None):
    """Whether the product is right to a rounding and a half, and nothing past its edges was written."""
    left, factor, bias, out = problem(size, layout, dtype)
    with simulator.active(level, seed=seed):
        assert products.cannot(left, factor, bias, out) is None
        assert products.product(left, factor, bias, out, config) is out
    whole = out.as_strided((out.shape[0] + ROOM, out.shape[1] + ROOM), out.stride())
    untouched = bool((whole[out.shape[0] :] == 7).all() and (whole[:, out.shape[1] :] == 7).all())
    wanted = left.double() @ factor.double() + bias.double()
    return untouched and bool((out - wanted).abs().max() <= 1.5 * torch.finfo(dtype).eps * max(1.0, float(wanted.abs().max())))


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_factors_however_they_lie(layout):
    assert right(layout) and right(layout, dtype=torch.float16, size=(8, 8, 8))


@pytest.mark.parametrize("config", products.CONFIGS, ids=str)
def test_every_config(config):
    """Of a tile and a bit each way, in groups of which the last is not whole."""
    layout = LAYOUTS[products.CONFIGS.index(config)]
    assert right(layout, config, size=(136, config["BLOCK_N"] + 8, config["BLOCK_K"] + 8))


# M, N, K around every boundary: halves of 64 rows, tiles of 128 x 128, panels of 64 columns, steps of 32; one of everything
EDGES = [(1, 8, 8), (63, 64, 32), (64, 72, 40), (65, 120, 24), (128, 128, 64), (129, 136, 8), (300, 8, 96)]


@pytest.mark.parametrize("size", EDGES, ids=str)
def test_edges(size):
    assert right((ALONG, LAYOUTS[size[0] % 4][1]), size=size)
    m, n, k = size
    left, factor = torch.ones(m, k, dtype=torch.float16), torch.eye(k, n, dtype=torch.float16) * 3
    with simulator.active("checks"):
        assert torch.equal(products.product(left, factor, config=SMALL), left @ factor)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_right_whatever_comes_first(seed):
    """Blocks and threads in another order; and of one step each, where the first multiplier could be tiles ahead."""
    assert right((ACROSS, ACROSS), level="values", seed=seed) and right((ALONG, ALONG), level="values", size=(520, 136, 8), seed=seed)


# ---- who takes it ------------------------------------------------------------------------------------------------------------


def of(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)


REFUSED = {
    "the factors are float32, its products are of bfloat16 or float16": lambda: (of(8, 8, dtype=torch.float32),) * 2,
    "there is nothing to multiply: M, N, K are 0, 8, 16": lambda: (of(0, 16), of(16, 8)),
    "the left factor [65, 33] has strides [33, 1]": lambda: (of(65, 33), of(33, 8)),
    "the right factor [16, 33] has strides [33, 1]": lambda: (of(16, 16), of(16, 33)),
    "the left factor [16, 8] has strides [0, 1]": lambda: (of(1, 8).expand(16, 8), of(8, 8)),
    "the result is [16, 33]: rows of 33 elements do not begin at whole 16 bytes, 33 is no multiple of 8": lambda: (
        of(16, 16),
        of(33, 16).t(),
    ),
    "the result [16, 8] has strides [1, 16]": lambda: (of(16, 16), of(16, 8), None, of(8, 16).t()),
    "the bias [8] has a stride of 2": lambda: (of(16, 16), of(16, 8), of(16)[::2]),
    "the left factor begins 2 bytes past a multiple of 16": lambda: (of(257)[1:].view(16, 16), of(16, 8)),
    "the bias begins 2 bytes past a multiple of 4": lambda: (of(16, 16), of(16, 8), of(9)[1:]),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_it_refuses(said):
    with simulator.active("checks"):
        assert products.cannot(*REFUSED[said]()).startswith(said)
    assert products.cannot(of(16, 16), of(16, 8)) == "it needs a CUDA device or the simulator, the tensor is on cpu"


@pytest.mark.parametrize("name", ["gemm", "linear", "gemm_backward", "linear_backward"])
def test_it_stands_behind_those_that_were_timed(name):
    op = OPS[name]
    assert [k.name for k in op.kernels[-2:]] == ["cuda.v1_hopper", "reference"]
    kernel = op.kernel("cuda.v1_hopper")
    case = next(c for c in op.spec.cases if c.dims.get("M") == 200 and c.dtype == torch.bfloat16)
    with simulator.active("checks"):
        assert kernel.refuse(op.spec.draw(case)) is None


def test_what_it_leaves_to_others(monkeypatch):
    monkeypatch.setattr(products, "processors", lambda x: 132)
    x, weight = (torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((32768, 768), (2304, 768)))
    assert OPS["linear"].kernel("cuda.v1_hopper").declines({"x": x, "weight": weight, "bias": None}) is None
    said = (
        OPS["linear_backward"].kernel("cuda.v1_hopper").declines({"dout": x.new_empty(32768, 2304), "x": x, "weight": weight, "bias": None})
    )
    assert said == "54 tiles of 128 x 256 for 132 multiprocessors"


@pytest.mark.thorough
@pytest.mark.parametrize("config", products.CONFIGS, ids=str)
def test_no_spills_and_no_product_waits_for_another(config):
    for dtype, a, b in itertools.product(("__half", "__nv_bfloat16"), *[("K_MAJOR", "MN_MAJOR")] * 2):
        made = compiler.compiled(products.V1, f"product<{dtype}, {a}, {b}, {products.form(config)}>", "sm_90a")
        assert (made.spill_bytes, made.loss) == (0, "") and made.registers <= 168


# ---- faults ------------------------------------------------------------------------------------------------------------------

WRONG = {  # as it stands, and with an error: boxes, halves, panels, the way a factor lies, phases, bias
    "sFull, k * X::K, row)": "sFull, k * X::K, row / 2)",
    "row + p * 64, k * X::K": "row, k * X::K",
    "tile.x * BLOCK_M, tile.y": "tile.x * HALF, tile.y",
    "tile.y * X::WIDE, tiles.F": "tile.x * X::WIDE, tiles.F",
    "column + p * 64, k * X::K": "column, k * X::K",
    "sB + p * X::K * LINE, tB": "sB + (1 - p) * X::K * LINE, tB",
    "mn_major<128>(sA, ": "k_major<128>(sA, ",
    "b + i * NEXT_B": "b + i * NEXT_A",
    "X::A_MAJOR, X::B_MAJOR>(d, ": "X::A_MAJOR, X::A_MAJOR>(d, ",
    "SECOND * HALF * X::K * 2": "0",
    "make_int2(first + i % high, i / high)": "make_int2(first + i % group, i / group)",
    "i_tile += gridDim.x, ++whole)": "i_tile += gridDim.x)",
    "column < biased ?": "column + 8 < biased ?",
    "i_tile += gridDim.x, ++at) {\n      const int2 tile": "i_tile += gridDim.x) {\n      const int2 tile",
    "half * X::OUT;\n        consumer_wait": "(1 - half) * X::OUT;\n        consumer_wait",
    "p < X::N / 64": "p < X::N / 64 - 1",
    "sHalf + p * PANEL, tile.y": "sHalf, tile.y",
    "tile.y * X::N + p * 64, tile.x": "tile.y * X::N, tile.x",
    "tile.x * BLOCK_M + half * HALF": "tile.x * BLOCK_M",
}


def everything(level="checks", seed=None):
    """All there is: both ways of both factors, tiles of three steps."""
    return all(right(layout, level=level, seed=seed) for layout in ((ALONG, ACROSS), (ACROSS, ALONG)))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("stands", WRONG)
def test_a_wrong_place_is_seen(stands, tmp_path, monkeypatch):
    monkeypatch.setattr(products, "V1", rewritten(products.V1, stands, WRONG[stands], tmp_path))
    with pytest.raises((AssertionError, simulator.Found)):
        assert everything()


@pytest.mark.parametrize("box", [(64, 64), (128, 32), (32, 64)], ids=["result", "along", "across"])
def test_an_edge_that_is_not_clipped_is_seen(box, monkeypatch):
    class Unclipped(products.TensorMap):
        def __init__(self, tensor, size, swizzle):
            super().__init__(tensor, size, swizzle)
            if size == box:
                self.size = tuple(n + ROOM for n in self.size)

    monkeypatch.setattr(products, "TensorMap", Unclipped)
    with pytest.raises((AssertionError, simulator.Found)):
        assert everything()


NEEDED = [(path, i) for path in (HEADER, products.V1.path) for i in orders(read(path))]


def faulty(source, folder, monkeypatch, seeds=SEEDS):
    """On tiles of several steps and of one; in other orders; and where the second multiplier comes late, so that the first could be tiles ahead."""
    monkeypatch.setattr(products, "V1", source)
    try:
        for size in (SIZE, (520, 136, 8)):
            if not right((ACROSS, ALONG), level="all", size=size):
                return True
        for seed in seeds:
            test_it_is_right_whatever_comes_first(seed)
        late = "if (SECOND) {\n      for (int i = 0; i < 64; ++i) rooftile_sim_pause();"
        monkeypatch.setattr(products, "V1", rewritten(source, "if (SECOND) {", late, folder))
        if not right((ALONG, ALONG), level="values", size=(900, 136, 8)):
            return True
    except (simulator.Found, AssertionError):
        return True
    return False


def test_whole_it_has_no_fault(tmp_path, monkeypatch):
    assert not faulty(products.V1, tmp_path, monkeypatch, seeds=())  # in other orders: above


@pytest.mark.thorough
@pytest.mark.parametrize("path, line", NEEDED, ids=[f"{path.stem}-{i + 1}" for path, i in NEEDED])
def test_no_barrier_fence_or_wait_can_be_taken_away(path, line, tmp_path, monkeypatch):
    assert faulty(without(products.V1, line, tmp_path, path), tmp_path, monkeypatch)
