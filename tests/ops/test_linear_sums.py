"""linear's gradients with the bias's beside the weight's, for Hopper in the simulator: every edge, and that no line that orders anything can be taken away."""

import pytest
import torch

from faulty_kernels import orders, rewritten, some, without
from rooftile.core.kernel import OPS
from rooftile.cuda import compile as compiler
from rooftile.cuda import simulator
from rooftile.ops.gemm import sums_kernels as kernels

KERNEL = kernels.LINEAR_BACKWARD
SMALL = {"BLOCK_N": 128, "BLOCK_K": 32, "STAGES": 3}  # everything a large tile has, in an eighth of the time
SIZE = (168, 136, 136)  # four tiles of SMALL, six steps; each size ends 8 past a step or a tile
SEEDS = range(1, 4)
ROOM = 8  # between rows, and behind the last


def inside(t):
    """The same values in a larger matrix of NaN."""
    large = t.new_full((t.shape[0] + ROOM, t.shape[1] + ROOM), float("nan"))
    large[: t.shape[0], : t.shape[1]] = t
    return large[: t.shape[0], : t.shape[1]]


def right(size=SIZE, config=SMALL, level="checks", seed=None, dtype=torch.bfloat16):
    """Whether both gradients are right to a rounding and a half."""
    (m, f, k), gen = size, torch.Generator().manual_seed(sum(size))
    g, x = (torch.randn(m, n, generator=gen).to(dtype) for n in (f, k))
    with simulator.active(level, seed=seed):
        made = kernels.weight_gradient(inside(g), inside(x), config)
    wanted = g.double().t() @ x.double(), g.double().sum(0)
    near = [(a - b).abs().max() <= 1.5 * torch.finfo(dtype).eps * max(1.0, float(b.abs().max())) for a, b in zip(made, wanted)]
    return all(map(bool, near))


@pytest.mark.parametrize("config", kernels.CONFIGS, ids=str)
def test_every_config(config):
    assert right((config["BLOCK_K"] * config["STAGES"] + 8, 136, config["BLOCK_N"] + 8), config)


# M, F, K around every boundary: steps of 32 rows, tiles of 128 x 128, halves and panels of 64; one of everything; a step for one of two parts
EDGES = [(1, 8, 8), (31, 64, 64), (32, 72, 120), (33, 120, 128), (64, 128, 136), (200, 8, 8)]


@pytest.mark.parametrize("size", EDGES, ids=str)
def test_edges(size):
    assert right(size, dtype=torch.float16)


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 6])
def test_parts(monkeypatch, parts):
    """Of six steps: whole shares, one that is shorter, and of four one that has none."""
    monkeypatch.setattr(kernels, "processors", lambda x: 4 * parts)
    assert right()


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_right_whatever_comes_first(seed):
    assert right(level="values", seed=seed)


def test_a_linear_with_leading_axes():
    x, weight, bias = torch.randn(2, 20, 16).bfloat16(), torch.randn(24, 16).bfloat16(), torch.zeros(24).bfloat16()
    dout = torch.randn(2, 20, 24).bfloat16()
    with simulator.active("checks"):
        made = KERNEL.run(dout, x, weight, bias, config=SMALL)
    wanted = OPS["linear_backward"].spec.reference(*(t.double() for t in (dout, x, weight, bias)))
    assert [t.shape for t in made] == [t.shape for t in wanted]
    assert all((a - b).abs().max() <= 0.01 * b.abs().max() for a, b in zip(made, wanted))


# ---- who takes it ------------------------------------------------------------------------------------------------------------


def call(m, f, k, dtype=torch.bfloat16, device="meta", bias=True):
    dout, x, weight = (torch.empty(s, dtype=dtype, device=device) for s in ((m, f), (m, k), (f, k)))
    return {"dout": dout, "x": x, "weight": weight, "bias": dout.new_empty(f) if bias else None}


def test_what_it_takes_and_leaves(monkeypatch):
    monkeypatch.setattr(kernels, "processors", lambda x: 132)
    assert KERNEL.declines(call(32768, 2304, 768)) is None
    assert KERNEL.declines(call(32768, 3072, 768)) == "72 tiles in 1 part leave 60 of 132 multiprocessors without work"
    assert KERNEL.declines(call(16384, 4608, 3584)) == "504 tiles of 128 x 256 for 132 multiprocessors"
    assert KERNEL.declines(call(4096, 2304, 768)) == "64 steps in 2 parts: a part has at least 64"
    with simulator.active("checks"):
        assert KERNEL.refuse(call(8, 16, 24, device="cpu")) is None
        assert KERNEL.refuse(call(8, 16, 24, device="cpu", bias=False)).startswith("there is no bias")
        assert KERNEL.refuse(call(8, 33, 24, device="cpu")).startswith("the left factor [33, 8] has strides [1, 33]")
        assert KERNEL.refuse(call(8, 16, 24, torch.float32, "cpu")).startswith("the factors are float32")
        across = call(8, 16, 24, device="cpu")
        across["dout"] = across["dout"].t().contiguous().t()
        assert KERNEL.refuse(across).startswith("rows of dout [8, 16] have strides [1, 8]")
        assert KERNEL.refuse(call(0, 16, 24, device="cpu")) == "there is nothing to multiply: M, N, K are 16, 24, 0"
    assert "needs a CUDA device or the simulator" in KERNEL.refuse(call(8, 16, 24, device="cpu"))


@pytest.mark.thorough
@pytest.mark.parametrize("config", kernels.CONFIGS, ids=str)
def test_no_spills_and_no_product_waits_for_another(config):
    for dtype in ("__half", "__nv_bfloat16"):
        made = compiler.compiled(kernels.V2, f"weight_gradient<{dtype}, {', '.join(map(str, config.values()))}>", "sm_90a")
        assert (made.spill_bytes, made.loss) == (0, "") and made.registers <= 168


# ---- faults ------------------------------------------------------------------------------------------------------------------

WRONG = {  # as it stands, and with an error: boxes, halves, panels, shares, sums, parts
    "share.row, share.column, K": "share.column, share.row, K",
    "++asked, ++next": "++asked, next += 2",
    "? share.first : share.last": "? 0 : share.last",
    "SECOND * HALF + wgmma_row(i)": "wgmma_row(i)",
    "row < F && column < K": "row < F",
    "mine / 8 * X::K * LINE": "0",
    "mine % 8 * 16": "mine % 4 * 16",
    "r += GROUPS": "r += 2 * GROUPS",
    "g < GROUPS; ++g": "g < GROUPS - 1; ++g",
    "share.row + column < F": "column < F",
    "tile / across * BLOCK_M": "tile % across * BLOCK_M",
    "min((part + 1) * each, steps)": "steps",
    "min(part * each, steps)": "min(part * each + 1, steps)",
    "gPartial += (long long)part * F * K, ": "",
    "gSums += part * F;": "gSums += 0;",
    "summed ? 12 : 8": "8",
    "gSums[p * F + mine]": "gSums[mine]",
    "gPartial + p * size + i + v": "gPartial + i + v",
    "if (i >= size) return;": "if (i > size) return;",
}


@pytest.fixture
def everything(monkeypatch):
    """Three parts of two steps; all six steps in one, which go round the ring; a size that is no whole number of add_parts' blocks."""

    def right_each(**how):
        for processors, size in ((12, SIZE), (4, SIZE), (4, (72, 72, 72))):
            monkeypatch.setattr(kernels, "processors", lambda x, n=processors: n)
            if not right(size, **how):
                return False
        return True

    return right_each


LATE = {  # each of those that read a stage, while the others go on
    "    multiply<X>(d, ": "    if (!SECOND) for (int i = 0; i < 64; ++i) rooftile_sim_pause();\n    multiply<X>(d, ",
    "    const char* sPanel": "    for (int i = 0; i < 64; ++i) rooftile_sim_pause();\n    const char* sPanel",
}


@pytest.fixture
def faulty(everything, tmp_path, monkeypatch):
    def is_faulty(source):
        monkeypatch.setattr(kernels, "V2", source)
        try:
            if not everything(level="all") or not all(everything(level="values", seed=seed) for seed in SEEDS):
                return True
            for stands, late in LATE.items():
                monkeypatch.setattr(kernels, "V2", rewritten(source, stands, late, tmp_path))
                if not everything(level="values"):
                    return True
        except simulator.Found:
            return True
        return False

    return is_faulty


def test_whole_it_has_no_fault(faulty):
    assert not faulty(kernels.V2)


@pytest.mark.parametrize("stands", some(WRONG, *list(WRONG)[::3]))
def test_a_wrong_place_is_seen(faulty, tmp_path, stands):
    assert faulty(rewritten(kernels.V2, stands, WRONG[stands], tmp_path))


NEEDED = orders(kernels.V2.text)


@pytest.mark.parametrize("line", some(NEEDED, *NEEDED[::3]))
def test_no_barrier_fence_or_wait_can_be_taken_away(faulty, tmp_path, line):
    assert faulty(without(kernels.V2, line, tmp_path))
