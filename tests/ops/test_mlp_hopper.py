"""The products around gelu, and around a gate, for Hopper in the simulator: what the grid's cases do not reach, and that no line that orders anything can be taken away."""

import re

import pytest
import torch

from faulty_kernels import orders, rewritten, without
from rooftile.core.kernel import OPS
from rooftile.cuda import compile as compiler
from rooftile.cuda import simulator
from rooftile.ops._shared import hopper_products
from rooftile.ops.mlp import cuda_kernels as kernels
from rooftile.ops.mlp import reference
from rooftile.workbench.build import instances

FORWARD, BACKWARD = kernels.FORWARD[0], kernels.BACKWARD[0]
GATED_FORWARD, GATED_BACKWARD = kernels.GATED_FORWARD[0], kernels.GATED_BACKWARD[0]


def problem(m, k, f, approximate="tanh", dtype=torch.bfloat16, biases=True, keep="pre"):
    """Sizes of the two products: x [m, k] by weight1 [f, k], dout [m, k] by weight2 [k, f]."""
    gen = torch.Generator().manual_seed(m + k + f)
    x, dout, w1, w2 = (
        torch.randn(*s, generator=gen).div(d**0.5).to(dtype) for s, d in (((m, k), 1), ((m, k), 1), ((f, k), k), ((k, f), k))
    )
    b1, b2 = (torch.randn(n, generator=gen).to(dtype) if biases else None for n in (f, k))
    _, kept, h = reference.mlp(x, w1, b1, w2, b2, approximate, keep)
    return (x, w1, b1, w2, b2, approximate, keep), (dout, x, w1, b1, w2, b2, kept, h, approximate, keep)


def near(got, wanted, roundings=1):
    """Within so many times three roundings, as a share of the largest element."""
    unit = torch.finfo(got.dtype).eps if got.dtype != torch.float32 else torch.finfo(torch.bfloat16).eps
    return got.shape == wanted.shape and bool(
        (got.double() - wanted).abs().max() <= 1.5 * roundings * unit * max(1.0, float(wanted.abs().max()))
    )


def exact(call):
    return [t.double() if isinstance(t, torch.Tensor) else t for t in call]


def forward(call, config, level="checks"):
    """Whether what is kept and h are right."""
    with simulator.active(level):
        _, kept, h = FORWARD.run(*call, config=config)
    _, kept_wanted, h_wanted = reference.mlp(*exact(call))
    return near(kept, kept_wanted) and near(h, h_wanted)


def backward(call, config, level="checks"):
    """Whether what follows of dpre, dx and dweight1, and the sums of its columns are right."""
    with simulator.active(level):
        dx, dweight1, dbias1, *_ = BACKWARD.run(*call, config=config)
    dx_wanted, dweight1_wanted, dbias1_wanted, *_ = reference.mlp_backward(*exact(call))
    return near(dx, dx_wanted) and near(dweight1, dweight1_wanted) and near(dbias1, dbias1_wanted)


def gated(m, k, f, activation="silu", dtype=torch.bfloat16):
    """The same sizes, of gate and of up each f."""
    (x, _, _, w2, *_), (dout, *_) = problem(m, k, f, dtype=dtype, biases=False)
    w1 = torch.randn(2 * f, k, generator=torch.Generator().manual_seed(f)).div(k**0.5).to(dtype)
    _, pre = reference.gated_mlp(x, w1, w2, activation)
    return (x, w1, w2, activation), (dout, x, w1, w2, pre, activation)


def gate_forward(call, config, level="checks"):
    """Whether pre and what follows of h are right, and the latter is the same where pre is not kept."""
    with simulator.active(level):
        out, pre = GATED_FORWARD.run(*call, config=config)
        alone, nothing = GATED_FORWARD.run(*call, config=config, save=False)
    wanted = reference.gated_mlp(*exact(call))
    return near(out, wanted[0], 2) and near(pre, wanted[1]) and nothing is None and torch.equal(out, alone)


def gate_backward(call, config, level="checks"):
    """Whether what follows of dpre, dx and dweight1, and of h made again, dweight2, are right."""
    with simulator.active(level):
        made = GATED_BACKWARD.run(*call, config=config)
    return all(near(got, wanted, 2) for got, wanted in zip(made, reference.gated_mlp_backward(*exact(call))))


SEEDS = range(1, 5)
SHAPES = [  # M, K, F around every boundary: tiles of 128 x 256, panels of 64, steps of 32 and 64, strips of 16 rows
    (1, 8, 8), (16, 64, 64), (17, 72, 72), (64, 32, 256), (65, 40, 264), (127, 200, 248), (128, 128, 512), (129, 136, 520),
]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("m, k, f", SHAPES)
def test_edges(m, k, f):
    config = kernels.CONFIGS[(m + f) % len(kernels.CONFIGS)]
    form, dtype = "tanh" if m % 2 else "none", torch.float16 if f % 3 else torch.bfloat16
    calls = problem(m, k, f, form, dtype, biases=k != 40, keep="slope" if k % 3 else "pre")
    assert forward(calls[0], config) and (calls[0][2] is None or backward(calls[1], config))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("m, k, f", SHAPES)
def test_edges_of_gate_and_up(m, k, f):
    config = kernels.CONFIGS[(m + f) % len(kernels.CONFIGS)]
    calls = gated(m, k, f, ("silu", "gelu", "gelu_tanh", "relu")[(m + k) % 4], torch.float16 if f % 3 else torch.bfloat16)
    assert gate_forward(calls[0], config) and gate_backward(calls[1], config)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("config", kernels.CONFIGS, ids=str)
def test_several_tiles_a_block(config):
    """Six of a last row and column that are not whole, in groups of two rows of tiles: each of two blocks walks from one to the next."""
    calls, gates = problem(300, 200, 520, keep="slope"), gated(300, 72, 264)
    config = {**config, "GROUP": 2}
    assert forward(calls[0], config) and backward(calls[1], config)
    assert gate_forward(gates[0], config) and gate_backward(gates[1], config)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_bits_whatever_comes_first(seed):
    """Blocks and threads in another order: sums of columns too are added in one, and no lane that still waits is overtaken."""
    calls, gates, config = problem(260, 136, 264), gated(260, 72, 136), kernels.CONFIGS[0]
    got = []
    for s in (None, seed):
        with simulator.active("values", seed=s):
            got.append([*FORWARD.run(*calls[0], config=config), *BACKWARD.run(*calls[1], config=config)])
            got[-1] += [*GATED_FORWARD.run(*gates[0], config=config), *GATED_BACKWARD.run(*gates[1], config=config)]
    assert all(map(torch.equal, *got))


def test_rows_past_the_end_are_in_no_sum():
    """A weight of infinity: a row of zeros, as the copy engine brings it where there is none, would make it NaN."""
    _, call = problem(70, 64, 64)
    dout, _, _, _, w2, _, pre, *_ = call
    dout.abs_(), pre.fill_(1)
    w2[3, 5] = torch.inf
    with simulator.active("checks"):
        _, _, dbias1, *_ = BACKWARD.run(*call, config=kernels.CONFIGS[0])
    wanted = reference.mlp_backward(*exact(call))[2]
    assert wanted[5].isinf() and torch.equal(dbias1.isinf(), wanted.isinf()) and not dbias1.isnan().any()


def test_what_a_gate_refuses():
    x, w1, w2, activation = gated(16, 64, 20)[0]
    with simulator.active("checks"):
        said = GATED_FORWARD.refuse({"x": x, "weight1": w1, "weight2": w2, "activation": activation})
    assert said == "gate and up are 20 columns each, no multiple of 8: up's begin at no whole 16 bytes"


DECLINED = {
    "sums of 8192 numbers: beyond {}": (8192, 8192, 16384),
    "6 tiles of 128 x 256 for 132 multiprocessors": (300, 768, 512),
}


@pytest.mark.parametrize("said", DECLINED)
def test_what_it_leaves_to_others(said, monkeypatch):
    monkeypatch.setattr(hopper_products, "processors", lambda x: 132)
    m, k, f = DECLINED[said]
    empty = {
        n: torch.empty(s, dtype=torch.bfloat16, device="meta")
        for n, s in {"x": (m, k), "weight1": (f, k), "dout": (m, k), "weight2": (k, f)}.items()
    }
    assert said.format(4096) in FORWARD.declines(empty) and said.format(4096) in BACKWARD.declines(empty)
    large = {**empty, "x": empty["x"].new_empty(32768, 768), "weight1": empty["x"].new_empty(3072, 768)}
    assert FORWARD.declines(large) is None


@pytest.mark.thorough
def test_no_spills_and_no_product_waits_for_another():
    found = {
        w.instance: w
        for op in map(OPS.get, ("mlp", "mlp_backward", "gated_mlp", "gated_mlp_backward"))
        for w in instances(op, op.kernel("cuda.v1_hopper"), every=True)
        if w.source == kernels.V1
    }
    assert {re.sub(".*, (.*, .*, .*, .*)>", r"\1", name) for name in found} == {
        "256, 32, 6, 2",
        "256, 64, 3, 1",
        "256, 64, 3, 0",
        "192, 64, 4, 1",
    }
    acts = ("forward<__half, Gelu", "backward<__half, Gelu", "forward<__half, Sloped<Gelu>", "backward<__half, Slope")
    beyond = [f"mlp_{act}, 256, 32, 6, 2>" for act in acts]  # forms that no case calls for
    for name, shared in [*((n, w.shared) for n, w in found.items()), *((n, 0) for n in beyond)]:
        made = compiler.compiled(kernels.V1, name, "sm_90a")
        assert (made.spill_bytes, made.loss) == (0, ""), name
        assert made.registers <= 168 and made.shared_bytes + shared <= 227 * 1024, name


# ---- faults ------------------------------------------------------------------------------------------------------------------

SHORT_RING = next(c for c in kernels.CONFIGS if c["STAGES"] == 3 and c["LAG"] == 1)
WRONG = {  # as it stands, and with an error: rows, columns, sums, places
    "tiles.M - row : 0": "tiles.M - row - 1 : 0",
    "column < biased ?": "column + 8 < biased ?",
    "for (int w = 0; w < 4; ++w)": "for (int w = 0; w < 3; ++w)",
    "if (first == ROWS - DEEP) open": "if (first == 0) open",
    "gFrom += PARTS * F": "gFrom += F",
    "gDgate += 2 * F, gTo += F;": "gDgate += 2 * F;",
    "column + p * 64, k * X::K": "column, k * X::K",
    "make_int2(first + i % high, i / high)": "make_int2(first + i % group, i / group)",
    "else d = make_uint4(0, 0, 0, 0);": "",
    "k * X::K, p * F + column": "k * X::K, column",
    "in_half(sHalf, r + odd, X::WIDE + mine)": "in_half(sHalf, r + odd, mine)",
    "gTo + F), up)": "gTo + F), gate)",
    "lane() % 16 * 8, odd = lane() / 16": "lane() % 16 * 8, odd = 0",
    "gFrom + p * F, r < from.rows": "gFrom, r < from.rows",
    "gate[i] = x[i] * up[i] * of.d": "gate[i] = x[i] * of.d",
    "pack<T>(h, up);": "pack<T>(h, x);",
    "gDgate + F), dup)": "gDgate + F), dgate)",
    "y[i] = of.y, x[i] = of.d;": "y[i] = of.y;",
    "return {0.0f, d};": "return {0.0f, 1.0f};",
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("stands", WRONG)
def test_a_wrong_place_or_sum_is_seen(stands, tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "V1", rewritten(kernels.V1, stands, WRONG[stands], tmp_path))
    with pytest.raises((AssertionError, simulator.Found)):
        test_several_tiles_a_block(kernels.CONFIGS[0])
        test_rows_past_the_end_are_in_no_sum()


# What the simulator does not miss: that copies of zeros have ended before the block does. The walk's own lines are taken away in test_gemm_hopper.py.
NEEDED = orders(kernels.V1.text, "  copy_wait<0>")


def faulty(source, monkeypatch, seeds=SEEDS) -> bool:
    """On tiles enough for both blocks to walk, of many steps and of one; and in other orders."""
    monkeypatch.setattr(kernels, "V1", source)
    try:
        for size in ((260, 136, 264), (520, 8, 264)):
            calls = problem(*size)
            if not (forward(calls[0], SHORT_RING, "all") and backward(calls[1], SHORT_RING, "all")):
                return True
            gates = gated(*size)
            if not (gate_forward(gates[0], SHORT_RING, "all") and gate_backward(gates[1], SHORT_RING, "all")):
                return True
        for seed in seeds:
            test_the_same_bits_whatever_comes_first(seed)
    except (simulator.Found, AssertionError):
        return True
    return False


@pytest.mark.thorough
def test_whole_it_has_no_fault(monkeypatch):
    assert not faulty(kernels.V1, monkeypatch, seeds=())  # in other orders: above


@pytest.mark.thorough
@pytest.mark.parametrize("line", NEEDED, ids=[f"line-{i + 1}" for i in NEEDED])
def test_no_barrier_fence_or_wait_can_be_taken_away(line, tmp_path, monkeypatch):
    assert faulty(without(kernels.V1, line, tmp_path), monkeypatch)
