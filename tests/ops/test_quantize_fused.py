"""What the grid cannot say of rmsnorm_quantize and swiglu_quantize: that they are the compositions, that order does not show, wide rows, refusals."""

import pytest
import torch
import torch.nn.functional as F

from rooftile.core.kernel import OPS, Kernel
from rooftile.cuda import simulator
from rooftile.ops import add_rmsnorm_quantize, dequantize, quantize, rmsnorm, rmsnorm_quantize, swiglu_quantize
from rooftile.ops.quantize.fused_reference import inverse_root, unrounded
from rooftile.workbench.check import Problem
from rooftile.workbench.gauge import _same

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
FUSED = ("rmsnorm_quantize", "add_rmsnorm_quantize", "swiglu_quantize")


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(made, wanted):
    assert len(made) == len(wanted)
    for a, b in zip(made, wanted):
        assert a.dtype == b.dtype and a.shape == b.shape and bool(_same(a, b).all()), f"{int((~_same(a, b)).sum())} of {a.numel()} differ"


def simulated(op, rung, *args, config=None):
    kernel = OPS[op].kernel(rung)
    call = dict(zip(OPS[op].names, args))
    with simulator.active("checks"):
        assert kernel.refuse(call) is None, kernel.refuse(call)
        return kernel.bound(config or kernel.heuristic(call))(*args)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("to, step", [(E4M3, 2.0**-4), (E5M2, 2.0**-3)])
@pytest.mark.parametrize("block", ["token", "1x128"])
def test_it_is_the_norm_to_half_a_step(to, step, block, device):
    x, w = (drawn(2, 9, 264) * 3).to(device), drawn(264, seed=1).to(device)
    values, scale = rmsnorm_quantize(x, w, to=to, block=block)
    assert values.shape == x.shape and scale.shape == ((2, 9) if block == "token" else (2, 9, 3))
    want, made = rmsnorm(x, w), dequantize(values, scale, to=torch.float32)
    assert bool(((made - want).abs() <= want.abs() * step * 1.001 + scale.max() * 2**-9).all())
    *fused, total = add_rmsnorm_quantize(x, x, w, to=to, block=block)
    assert torch.equal(total, x + x)
    same(fused, rmsnorm_quantize(x + x, w, to=to, block=block))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block", ["token", "1x128"])
def test_it_is_swiglu_in_float32_and_then_quantize(block, device):
    """Of PyTorch's own SiLU on a CPU to the last bit; on a GPU the exponential is ours, and near a tie a value may go the other way."""
    gate, up = drawn(9, 264).to(device).bfloat16(), drawn(9, 264, seed=1).to(device).bfloat16()
    made = swiglu_quantize(gate, up, block=block)
    want = quantize(F.silu(gate.float()) * up.float(), block=block)
    if device == "cpu":
        same(made, want)
    torch.testing.assert_close(made[1], want[1], rtol=1e-6, atol=0)
    assert int((made[0].float() != want[0].float()).sum()) <= 2
    same(swiglu_quantize(torch.cat([gate, up], 1), block=block), made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_n", [0, 128])
def test_the_rung_gives_the_bits_of_our_swiglu_and_our_quantize(dtype, block_n):
    """One pass changes nothing: the same kernels one after the other, float32 between them, end in the same bytes."""
    gate, up = (drawn(5, 392) * 4).to(dtype), drawn(5, 392, seed=1).to(dtype)
    between = simulated("swiglu", "cuda.v2_vector", gate.float(), up.float())
    want = simulated("quantize", "cuda.v2_vector", between, "float8_e4m3fn", 1, block_n, False)
    for rung in ("cuda.v4_fused_rows", "cuda.v3_fused_naive"):
        same(simulated("swiglu_quantize", rung, gate, up, "float8_e4m3fn", block_n, False), want)


def test_the_order_of_a_row_does_not_show():
    """4 neighbours at a time anywhere in the row: the same float32 root. In float32 sums it would be another in one row of three."""
    x = drawn(4096, 512) * torch.exp(drawn(4096, 512, seed=1))
    moved = x.unflatten(1, (128, 4))[:, torch.randperm(128, generator=torch.Generator().manual_seed(2))].flatten(1)
    assert torch.equal(inverse_root(x, 1e-6), inverse_root(moved, 1e-6))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("n", [8, 136, 1024, 1024 + 8, 4096, 8192 + 8])
@pytest.mark.parametrize("block_n", [0, 128])
def test_rows_of_every_deal(n, block_n):
    """From a warp of several rows a block to a block a row, the residual's stream and a float32 weight beside it; rows that fill their threads."""
    x, r, w = drawn(4 if n % 1024 == 0 else 5, n).bfloat16(), drawn(4 if n % 1024 == 0 else 5, n, seed=1).bfloat16(), drawn(n, seed=2)
    how = ("float8_e5m2", block_n, False)
    same(simulated("rmsnorm_quantize", "cuda.v4_fused_rows", x, w, 1e-5, *how), OPS["rmsnorm_quantize"].spec.reference(x, w, 1e-5, *how))
    if n < 8192:
        args = (x, r, None, 1e-5, *how)
        same(simulated("add_rmsnorm_quantize", "cuda.v4_fused_rows", *args), OPS["add_rmsnorm_quantize"].spec.reference(*args))


@pytest.mark.parametrize("vecs", [1, 2, 4])
def test_every_deal_of_a_config(vecs):
    x = drawn(5, 1032).bfloat16()
    for block_n in (0, 128):
        args = (x, None, 1e-5, "float8_e4m3fn", block_n, True)
        made = simulated("rmsnorm_quantize", "cuda.v4_fused_rows", *args, config={"vecs": vecs, "threads": 128})
        same(made, OPS["rmsnorm_quantize"].spec.reference(*args))
        args = (x, x, "float8_e4m3fn", block_n, True)
        made = simulated("swiglu_quantize", "cuda.v4_fused_rows", *args, config={"vecs": vecs, "threads": 256})
        same(made, simulated("swiglu_quantize", "cuda.v3_fused_naive", *args))


def test_squares_that_float_does_not_hold():
    """Of numbers about 2^-70, 16 bits each, squares lose bits below 2^-149: with no eps to hide it the rung rounds as the reference does."""
    x = (drawn(64, 136) * 2.0**-70).bfloat16()
    for eps in (0.0, 1e-20):
        args = (x, None, eps, "float8_e4m3fn", 0, False)
        same(simulated("rmsnorm_quantize", "cuda.v4_fused_rows", *args), OPS["rmsnorm_quantize"].spec.reference(*args))


def test_rows_that_lie_apart():
    wide = drawn(7, 800).bfloat16()
    x, gate, up = wide[:, 8:400], wide[:, :392], wide[:, 400:792]
    args = (x, None, 1e-5, "float8_e4m3fn", 128, False)
    same(simulated("rmsnorm_quantize", "cuda.v4_fused_rows", *args), OPS["rmsnorm_quantize"].spec.reference(*args))
    made = simulated("swiglu_quantize", "cuda.v4_fused_rows", gate, up, "float8_e4m3fn", 0, False)
    same(made, simulated("swiglu_quantize", "cuda.v4_fused_rows", gate.contiguous(), up.contiguous(), "float8_e4m3fn", 0, False))


def test_what_is_no_number_takes_its_row_alone():
    x = drawn(3, 136)
    x[0, 3], x[1, 7] = float("nan"), float("inf")
    args = (x, None, 1e-6, "float8_e4m3fn", 128, False)
    values, scale = want = OPS["rmsnorm_quantize"].spec.reference(*args)
    assert values[0].float().isnan().all() and values[1].float().isnan().sum() == 1 and values[2].float().isfinite().all()
    assert bool(scale.isfinite().all())
    for rung in ("cuda.v4_fused_rows", "cuda.v3_fused_naive"):
        same(simulated("rmsnorm_quantize", rung, *args), want)


def _rounded_between(*args):
    """The norm rounded to x's 16 bits before it is quantised, as two calls would."""
    x, weight, eps, to, block_n, power = args
    y = F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)
    return OPS["quantize"].spec.reference(y, to, 1, block_n, power)


def test_rounding_twice_is_refused():
    spec = OPS["rmsnorm_quantize"].spec
    case = next(c for c in spec.cases if "smoke" in c.use and c.dtype == torch.bfloat16)
    assert Problem(spec, case, "normal", "cpu").judge(Kernel("planted", _rounded_between)).status == "failed"


def _toward_zero(gate, up, to, block_n, power):
    k = gate.shape[1] // 2
    g, u = (gate, up) if up is not None else (gate[:, :k], gate[:, k:])
    exact, scale = unrounded(F.silu(g.double()) * u.double(), to, block_n, power)
    values = exact.float().to(getattr(torch, to))
    bytes_ = values.view(torch.uint8).clone()
    bytes_[values.double().abs() > exact.abs()] -= 1
    return bytes_.view(values.dtype), scale.float()


def _last_bit(*args):
    values, scale = OPS["swiglu_quantize"].spec.reference(*args)
    bytes_ = values.contiguous().view(torch.uint8).clone()
    bytes_.view(-1)[17] ^= 1
    return bytes_.view(values.dtype), scale


def _next_scale(*args):
    values, scale = OPS["swiglu_quantize"].spec.reference(*args)
    return values, scale * (1 + 2.0**-18)


@pytest.mark.parametrize("plant", [_toward_zero, _last_bit, _next_scale])
def test_8_bits_are_held_to_what_they_may_be_rounded_to(plant):
    """The gate's measure for 8-bit floats sees a single last bit, though a step is an eighth of the number."""
    spec = OPS["swiglu_quantize"].spec
    for case in (c for c in spec.cases if "smoke" in c.use):
        problem = Problem(spec, case, "normal", "cpu")
        assert problem.judge(Kernel("reference", spec.reference)).status == "passed"
        assert problem.judge(Kernel("planted", plant)).status == "failed", case.id


@pytest.mark.parametrize(
    "call, said",
    [
        (
            lambda x: rmsnorm_quantize(x, to=torch.int8),
            "rmsnorm_quantize: to is torch.int8, it takes torch.float8_e4m3fn, torch.float8_e5m2",
        ),
        (lambda x: swiglu_quantize(x, to="float8_e5m2"), "swiglu_quantize: to is 'float8_e5m2', it takes torch.float8_e4m3fn"),
        (lambda x: swiglu_quantize(x, block="tensor"), "swiglu_quantize: block is 'tensor', it takes token, 1x128"),
        (lambda x: swiglu_quantize(x[:, :5]), "N is 5 in gate, .* N must be even"),
        (lambda x: swiglu_quantize(x, x[:, :4]), r"gate is \[3, 6\], but up \[3, 4\]"),
        (lambda x: swiglu_quantize(x, torch.float8_e5m2), "swiglu_quantize: up must be a tensor, got dtype"),
        (lambda x: add_rmsnorm_quantize(x, x[:2]), r"x is \[3, 6\], but residual \[2, 6\]"),
        (lambda x: rmsnorm_quantize(x, x[0, :4]), "N is 4 in weight, but 6 in x"),
        (lambda x: rmsnorm_quantize(x[0, 0]), r"rmsnorm_quantize: x has 0 axes \[\], needs at least 1"),
        (lambda x: add_rmsnorm_quantize(x[0, 0], x[0, 0]), r"add_rmsnorm_quantize: x has 0 axes \[\], needs at least 1"),
        (lambda x: swiglu_quantize(x[0, 0], x[0, 0]), r"swiglu_quantize: gate has 0 axes \[\], needs at least 1"),
        (lambda x: rmsnorm_quantize(x.clone().requires_grad_()), r"rmsnorm_quantize has no gradient, and x requires one: .*no_grad"),
        (lambda x: swiglu_quantize(x, x.clone().requires_grad_()), "swiglu_quantize has no gradient, and up requires one"),
        (lambda x: quantize(x.clone().requires_grad_()), "quantize has no gradient, and x requires one"),
    ],
)
def test_a_wrong_call_names_both_sides(call, said):
    with pytest.raises(ValueError, match=said):
        call(torch.zeros(3, 6))
    with torch.no_grad():
        assert rmsnorm_quantize(torch.ones(3, 6, requires_grad=True))[0].dtype == E4M3


def test_who_cannot_take_a_row_says_so():
    with simulator.active("values"):
        call = {"x": torch.zeros(2, 16392), "weight": None, "eps": 0.0, "to": "float8_e4m3fn", "block_n": 0, "power_of_2": False}
        assert "longer than the 16384 columns" in OPS["rmsnorm_quantize"].kernel("cuda.v4_fused_rows").refuse(call)
        call = {"gate": torch.zeros(2, 6), "up": None, "to": "float8_e4m3fn", "block_n": 0, "power_of_2": False}
        assert "12 bytes, no multiple of the 16" in OPS["swiglu_quantize"].kernel("cuda.v4_fused_rows").refuse(call)
        x = torch.zeros(2, 8, dtype=torch.bfloat16)
        call = {"x": x, "residual": x.float(), "weight": None, "eps": 0.0, "to": "float8_e4m3fn", "block_n": 0, "power_of_2": False}
        assert "the stream has elements of 4 bytes and x of 2" in OPS["add_rmsnorm_quantize"].kernel("cuda.v4_fused_rows").refuse(call)


@pytest.mark.gpu
@pytest.mark.parametrize("op", FUSED)
def test_more_than_2_31_elements(op):
    """Offsets of 64 bits: the last rows are those of a call with them alone."""
    x = torch.empty(2**19 + 3, 4096, dtype=torch.bfloat16, device="cuda").normal_()
    run = {
        "rmsnorm_quantize": lambda t: rmsnorm_quantize(t, block="1x128"),
        "add_rmsnorm_quantize": lambda t: add_rmsnorm_quantize(t, t),
        "swiglu_quantize": lambda t: swiglu_quantize(t, block="1x128"),
    }[op]
    for whole, part in zip(run(x), run(x[-5:].clone())):
        assert bool(_same(whole[-5:], part).all())
