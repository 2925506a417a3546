"""What the grid cannot say of attention's options: whose attention it is by hand, what goes where, and wrong kernels of their own kind."""

import math
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import processes
from rooftile import attention
from rooftile.core.kernel import OPS, Kernel
from rooftile.ops.attention import options_kernels
from rooftile.workbench.check import Problem

OPTIONS, BACKWARD = OPS["attention_options"], OPS["attention_options_backward"]


def qkv(t=6, s=9, h=4, grad=False):
    gen = torch.Generator().manual_seed(t + s)
    shapes = ((2, t, h, 16), (2, s, 2, 16), (2, s, 2, 16))
    return tuple(torch.randn(shape, generator=gen, dtype=torch.float64).float().requires_grad_(grad) for shape in shapes)


def by_hand(q, k, v, seen, scores=lambda s: s):
    """[B T H Dv] with every head in its own loop."""
    out = torch.zeros(*q.shape[:3], v.shape[3])
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            g = h // (q.shape[2] // k.shape[2])
            s = scores(q[b, :, h] @ k[b, :, g].T * q.shape[3] ** -0.5).masked_fill(~seen, -math.inf)
            out[b, :, h] = torch.softmax(s, -1).nan_to_num(0.0) @ v[b, :, g]
    return out


@pytest.mark.parametrize("window, causal", [((2, 1), False), ((3, None), True), ((0, 0), False), ((None, 2), False), ((1, 5), True)])
@pytest.mark.parametrize("t, s", [(6, 9), (9, 6)])
def test_a_window_by_hand(t, s, window, causal):
    q, k, v = qkv(t=t, s=s)
    i, j = torch.arange(t)[:, None] + s - t, torch.arange(s)
    left, right = (math.inf if x is None else x for x in window)
    seen = (j >= i - left) & (j <= i + (0 if causal else right))
    torch.testing.assert_close(attention(q, k, v, window=window, causal=causal), by_hand(q, k, v, seen))


def test_the_cap_comes_before_the_bias_and_the_mask_after():
    q, k, v = qkv()
    bias, mask = torch.randn(6, 9), torch.rand(6, 9) < 0.6
    out = attention(q, k, v, softcap=0.7, bias=bias, mask=mask)
    torch.testing.assert_close(out, by_hand(q, k, v, mask, lambda s: 0.7 * torch.tanh(s / 0.7) + bias))


def test_a_sink_is_a_key_whose_value_is_zero():
    q, k, v = qkv()
    sinks = torch.randn(4)
    one = torch.cat([v, torch.zeros(2, 1, 2, 16)], 1)
    for h in range(4):
        padded = torch.cat([k, torch.zeros(2, 1, 2, 16)], 1)
        bias = torch.zeros(1, 1, 1, 10).index_fill(3, torch.tensor([9]), float(sinks[h]))
        wanted = attention(q, padded, one, bias=bias)
        torch.testing.assert_close(attention(q, k, v, sinks=sinks)[:, :, h], wanted[:, :, h])


def test_lengths_of_keys_as_a_mask_are_shorter_sequences():
    q, k, v = qkv()
    lengths = torch.tensor([4, 0])
    mask = (torch.arange(9) < lengths[:, None])[:, None, None]
    out, lse = attention(q, k, v, mask=mask, return_lse=True)
    torch.testing.assert_close(out[:1], attention(q[:1], k[:1, :4], v[:1, :4]))
    assert not out[1].any() and bool((lse[1] == -math.inf).all())


def test_a_query_that_sees_nothing_gets_and_gives_no_gradient():
    q, k, v = qkv(grad=True)
    mask = torch.ones(6, 9, dtype=torch.bool)
    mask[2] = False
    bias = torch.zeros(2, 4, 6, 9, requires_grad=True)
    out, lse = attention(q, k, v, mask=mask, bias=bias, return_lse=True)
    (out.sum() + lse[:, :, [0, 1, 3, 4, 5]].sum()).backward()
    assert not out[:, 2].any() and not q.grad[:, 2].any() and not bias.grad[:, :, 2].any()
    assert all(x.grad.isfinite().all() and x.grad.any() for x in (q, k, v, bias))


def test_lse_has_a_gradient():
    q, k, v = qkv(h=2, grad=True)
    _, lse = attention(q, k, v, return_lse=True)
    scores = torch.einsum("bthd,bshd->bhts", q, k) / 4
    ours, theirs = (torch.autograd.grad(x.sin().sum(), (q, k), retain_graph=True) for x in (lse, torch.logsumexp(scores, -1)))
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(2, 4, 6, 9), (1, 4, 6, 9), (2, 1, 6, 9), (6, 9), (1, 1, 1, 9), (4, 6, 1)])
def test_the_gradient_of_a_bias_has_its_shape(shape):
    q, k, v = qkv()
    bias = torch.randn(shape, dtype=torch.float64).float().requires_grad_()
    (ours,) = torch.autograd.grad(attention(q, k, v, bias=bias).square().sum(), bias)
    whole = bias.detach().expand(2, 4, 6, 9).clone().requires_grad_()
    (each,) = torch.autograd.grad(attention(q, k, v, bias=whole).square().sum(), whole)
    torch.testing.assert_close(ours, each.sum_to_size(shape))


def test_dropout_is_linear_in_v_and_divides_by_what_it_keeps():
    q, k, v = qkv(t=64, s=64, grad=True)
    out = attention(q, k, v, dropout_p=0.3, seed=5)
    assert torch.equal(out, attention(q, k, v, dropout_p=0.3, seed=5)) and not torch.equal(out, attention(q, k, v, dropout_p=0.3, seed=6))
    upstream = torch.randn(out.shape)
    (dv,) = torch.autograd.grad(out, v, upstream)
    torch.testing.assert_close((dv * v).sum(), (out * upstream).sum(), rtol=1e-4, atol=1e-3)
    ones = attention(q.detach(), k.detach(), torch.ones_like(v), dropout_p=0.3, seed=5)
    assert abs(float(ones.mean()) - 1) < 0.01 and float(ones.std()) > 0.05


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_generator_is_not_drawn_from_again_by_checkpointing(reentrant):
    """PyTorch puts its own generators back, this one it knows nothing of. Seen red: gradients of another mask than the forward pass's, without a word."""
    x = torch.randn(1, 4, 2, 16, requires_grad=True)

    def call(**how):
        torch.manual_seed(1)
        return checkpoint(lambda x: attention(x, x, x, dropout_p=0.5, **how), x, use_reentrant=reentrant)

    with pytest.raises(
        RuntimeError, match="attention: the backward pass computes this call again, and a generator would draw another mask"
    ):
        call(generator=torch.Generator().manual_seed(3)).sum().backward()
    for how in ({}, {"seed": 3}):
        torch.manual_seed(1)
        (plain,) = torch.autograd.grad(attention(x, x, x, dropout_p=0.5, **how).sum(), [x])
        x.grad = None
        call(**how).sum().backward()
        assert torch.equal(x.grad, plain)


def test_a_generator_draws_the_seed():
    q, k, v = qkv()
    first, again = (attention(q, k, v, dropout_p=0.5, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)


def test_heads_before_rows_are_views():
    q, k, v = qkv()
    turned = attention(*(x.transpose(1, 2) for x in (q, k, v)), causal=True, layout="BHTD")
    assert torch.equal(turned.transpose(1, 2), attention(q, k, v, causal=True)) and turned.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize(
    "options, takes_options",
    [({}, False), ({"causal": True, "return_lse": True}, False), ({"window": (None, None)}, False), ({"window": (None, 3), "causal": True}, False),
     ({"window": (None, 0)}, False), ({"layout": "BTHD"}, False), ({"softcap": 3.0}, True), ({"deterministic": True}, True)],
)  # fmt: skip
def test_who_asks_for_nothing_pays_for_nothing(options, takes_options, monkeypatch):
    asked = []
    monkeypatch.setattr(OPTIONS, "launch", lambda *args, **how: asked.append(1) or type(OPTIONS).launch(OPTIONS, *args, **how))
    attention(*qkv(), **options)
    assert bool(asked) == takes_options


@pytest.mark.parametrize("far", [2**31 - 1, 2**63 - 1, 2**70])
def test_a_window_beyond_all_keys_reaches_kernels_in_numbers_that_they_can_add_to(far, monkeypatch):
    """Right of 2**31 - 1 the sum with a query's place went round, and a query saw nothing; 2**70 was an OverflowError."""
    given = []
    monkeypatch.setattr(OPTIONS, "launch", lambda *args, **how: given.append(args[9:11]) or type(OPTIONS).launch(OPTIONS, *args, **how))
    q, k, v = qkv(grad=True)
    for window in ((far, 2), (2, far), (far, far)):
        torch.testing.assert_close(
            attention(q, k, v, window=window), attention(q, k, v, window=tuple(None if x == far else x for x in window))
        )
    reaches = [x for one in given for x in one]
    assert reaches and max(reaches) <= 2**30


@pytest.mark.parametrize(
    "options, said",
    [
        ({"window": (-2, 0)}, "the window's left is -2, it takes 0 or more"),
        ({"window": 3}, "window is 3, it takes 2 numbers"),
        ({"window": (True, 0)}, "the window's left is True, takes int or None"),
        ({"causal": 1, "softcap": 1.0}, "causal is 1, takes bool"),
        ({"window": (3,)}, r"window is \(3,\), it takes 2 numbers"),
        ({"softcap": -1.0}, "softcap is -1.0, and must be 0"),
        ({"softcap": float("inf")}, "softcap is inf, and must be 0 .none. or more, and finite"),
        ({"window": 3.0}, "window is 3.0, it takes 2 numbers"),
        ({"dropout_p": 1.5}, "p is 1.5, it lies between 0 and 1"),
        ({"sinks": torch.zeros(3)}, "H is 3 in sinks, but 4 in q"),
        (
            {"mask": torch.ones(6, 8, dtype=torch.bool)},
            r"mask is \[6, 8\], which does not broadcast to the scores, \[B, H, T, S\] = \[2, 4, 6, 9\]",
        ),
        ({"mask": torch.ones(6, 9)}, "mask is float32, takes bool"),
        ({"bias": torch.ones(3, 1, 6, 9)}, r"bias is \[3, 1, 6, 9\], which does not broadcast"),
        ({"bias": torch.ones(6, 9).bfloat16()}, "dtype is bfloat16 in constant_bias, but float32 in q"),
        ({"layout": "THD"}, "layout is 'THD', takes BTHD or BHTD"),
        ({"dropout_p": 0.1, "seed": 1, "generator": torch.Generator()}, "it takes 1 of the 2"),
        ({"dropout_p": 0.1, "generator": "cpu"}, "attention: generator is 'cpu', takes a torch.Generator or None"),
    ],
)
def test_a_wrong_call_names_both_sides(options, said):
    with pytest.raises(ValueError, match=said):
        attention(*qkv(), **options)


# ---- wrong kernels -----------------------------------------------------------------------------------------------------------

PLANTED = {
    "the window one too wide": (OPTIONS, {"left": lambda c: c["left"] + 1}),
    "the window one too narrow on the right": (OPTIONS, {"right": lambda c: c["right"] - 1}),
    "the cap forgotten": (OPTIONS, {"softcap": lambda c: 0.0}),
    "the sinks forgotten": (OPTIONS, {"sinks": lambda c: None}),
    "a weight kept that was dropped": (OPTIONS, {"p": lambda c: c["p"] / 2}),
    "the gradient of a window one too wide": (BACKWARD, {"left": lambda c: c["left"] + 1}),
    "another mask of dropout in the backward": (BACKWARD, {"seed": lambda c: c["seed"] + 1}),
    "the upper half of the seed lost": (BACKWARD, {"seed": lambda c: c["seed"] & 0xFFFFFFFF}),
    "the gradient of lse lost": (BACKWARD, {"dlse": lambda c: torch.zeros_like(c["dlse"])}),
}


def verdict(op, run):
    case = next(c for c in op.spec.cases if "smoke" in c.use and c.dtype == torch.float32)
    return Problem(op.spec, case, "normal", "cpu").judge(Kernel("planted", run)).status


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_seen(name):
    op, changes = PLANTED[name]

    def run(*args):
        call = dict(zip(op.names, args))
        made = op.spec.reference(**{**call, **{n: change(call) for n, change in changes.items()}})
        return tuple(x if x.numel() or n != "dsinks" else torch.zeros_like(call["sinks"]) for n, x in zip(op.spec.returns, made))

    assert verdict(op, run) == "failed"


@pytest.mark.parametrize("lost", ["dsinks", "dbias"])
def test_a_gradient_that_is_missing_is_seen(lost):
    def run(*args):
        made = dict(zip(BACKWARD.spec.returns, BACKWARD.spec.reference(*args)))
        return tuple((made | {lost: torch.zeros_like(made[lost])}).values())

    assert verdict(BACKWARD, run) == "failed"


def test_without_a_fault_none_is_seen():
    assert {verdict(op, op.spec.reference) for op in (OPTIONS, BACKWARD)} == {"passed"}


# ---- the kernels -------------------------------------------------------------------------------------------------------------

INTERPRETED = """
import importlib.util, sys, torch
from rooftile.workbench import interpreter
from rooftile.ops.attention import options_launchers as kernels, options_reference as reference, varlen_reference
spec = importlib.util.spec_from_file_location("given", sys.argv[1])
given = importlib.util.module_from_spec(spec)
spec.loader.exec_module(given)
for name in ("forward", "queries", "keys", "bias_gradient", "sinks_gradient"):
    setattr(kernels, name, getattr(given, name))
F, B = {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 4, "num_stages": 1}, kernels.backward_tiles((16, 16, 4, 1), (16, 16, 4, 1))
torch.manual_seed(0)
def compared(name, ours, theirs, inputs, rest):
    out, lse = ours[0](*inputs, *rest, config=F)
    want, want_lse = theirs[0](*inputs, *rest)
    made, wanted = [out, lse], [want, want_lse]
    g, gl = torch.randn_like(out), torch.randn_like(lse)
    saved = (g, gl, *inputs[:-1], inputs[-1], want, want_lse, *rest)
    made += ours[1](*saved, config=B)
    wanted += theirs[1](*saved)
    for n, x, y in zip(("out", "lse", "dq", "dk", "dv", "dsinks", "dbias"), made, wanted):
        torch.testing.assert_close(x, y, atol=3e-5, rtol=3e-5, msg=lambda m: f"{name}: {n}: {m}")
def dense(name, t, s, b=1, h=1, g=1, sinks=False, bias=None, mask=False, left=-1, right=-1, cap=0.0, p=0.0,
          forward=kernels.attention_options):
    q, k, v = torch.randn(b, t, h, 16), torch.randn(b, s, g, 16), torch.randn(b, s, g, 24)
    inputs = (q, k, v, torch.randn(h) if sinks else None, torch.randn(*bias, t, s) if bias else None, None,
              (torch.rand(b, h, t, s) < 0.3).index_fill(2, torch.tensor([3]), False) if mask else None, torch.tensor(-7 << 40) if p else None)
    compared(name, (forward, kernels.attention_options_backward),
             (reference.attention_options, reference.attention_options_backward), inputs, (0.25, left, right, cap, p))
for left, right in ((0, 0), (21, 3), (-1, 20), (33, -1)):
    dense("window", 40, 56, left=left, right=right)
dense("nothing to see", 56, 24, left=10, right=5)
dense("dropout", 20, 37, h=2, g=1, right=0, p=0.4, cap=2.0)
dense("bias", 20, 18, b=2, h=2, g=2, bias=(1, 2))
dense("bias", 18, 20, b=2, h=2, g=2, bias=(2, 1), p=0.3, cap=1.0)
dense("caps that scores are far from", 20, 18, b=2, h=2, g=2, bias=(2, 1), cap=1e6)
dense("caps that scores are far from", 20, 33, right=0, cap=1e20)
dense("mask", 20, 33, h=2, g=1, mask=True, sinks=True)
for b, h, g in ((1, 2, 1), (2, 8, 2), (1, 16, 1)):
    for left, right in ((0, 0), (21, 3), (-1, 20)):
        dense("heads as rows", 27, 40, b=b, h=h, g=g, left=left, right=right, sinks=h > 2, cap=2.0 * (h == 8), forward=kernels.attention_options_packed)
dense("heads as rows, dropout", 20, 37, b=2, h=4, g=1, left=9, right=0, p=0.4, forward=kernels.attention_options_packed)
dense("heads as rows, nothing to see", 56, 24, h=4, g=2, left=10, right=5, forward=kernels.attention_options_packed)
q, k, v = torch.randn(50, 2, 16), torch.randn(57, 1, 16), torch.randn(57, 1, 24)
cu = torch.tensor([0, 20, 20, 50], dtype=torch.int32), torch.tensor([0, 33, 40, 57], dtype=torch.int32)
compared("varlen", (kernels.attention_varlen, kernels.attention_varlen_backward),
         (varlen_reference.attention_varlen, varlen_reference.attention_varlen_backward),
         (q, k, v, *cu, torch.randn(2), torch.tensor(9)), (30, 33, 0.25, 18, 2, 0.0, 0.2))
rest = (0.25, -1, 0, 0.0, 0.0)  # a sequence of q that is longer than was said, and one of k
out, lse = kernels.attention_varlen(q, k, v, *cu, None, None, 16, 33, *rest, config=F)
assert out[16:20].isnan().all() and out[36:].isnan().all() and out[:16].isfinite().all() and out[20:36].isfinite().all()
assert lse[:, 16:20].isnan().all() and not lse[:, 20:36].isnan().any()
made = kernels.attention_varlen_backward(out, lse, q, k, v, *cu, None, None, out, lse, 16, 16, *rest, config=B)
assert all(x[36:].isnan().all() for x in made[:1]) and all(x[16:33].isnan().all() and x[33:40].isfinite().all() for x in made[1:3])
"""
SOURCE = Path(options_kernels.__file__)


def interpreted(path):
    return processes.run(str(path), code=INTERPRETED, TRITON_INTERPRET="1")


def test_the_kernels_over_many_tiles():
    """Through the interpreter, in a child, in tiles of 16: all three ranges of keys and of queries, each option by itself."""
    done = interpreted(SOURCE)
    assert done.returncode == 0, done.stderr[-3000:]


OVERLAPPED = """
import subprocess, sys, triton
from pathlib import Path
from triton.runtime import driver
from rooftile.core.kernel import OPS
from rooftile.ops.attention import options_launchers
from rooftile.workbench import check
from rooftile.workbench.dry import StandIn
from rooftile.workbench.explain import blank
driver.set_active(StandIn(90))
ptxas, folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas", sys.argv[1]
def launch(kernel, grid, *args, **meta):
    Path(folder, "made.ptx").write_text(kernel[grid](*args, **meta).asm["ptx"])
    said = subprocess.run([ptxas, "-v", "-arch=sm_90a", "made.ptx", "-o", "made.cubin"], cwd=folder, capture_output=True, text=True, check=True).stderr
    print(kernel.__name__, "serialised" if "wgmma" in said else "overlapped")
options_launchers.launch = launch
for name in ("attention_options", "attention_varlen"):
    for op in check.with_gradients([OPS[name]]):
        call = blank(op.spec, next(c for c in op.spec.cases if "bench" in c.use), "meta")
        kernel = op.kernel("triton")
        kernel.bound(kernel.heuristic(call))(*call.values())
"""


@pytest.mark.thorough
def test_the_products_of_window_and_varlen_overlap(tmp_path):
    """Else ptxas waits after every wgmma of the kernel, which cost the backward three quarters of its speed; whether it does hangs by a hair."""
    done = processes.run(str(tmp_path), code=OVERLAPPED, ROOFTILE_DRY_GPU="1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:-1] == [f"{kernel} overlapped" for kernel in ("forward", "queries", "keys") * 2]


WRONG = {  # what stands in the kernels' source, and what comes in its place
    "(n >= m + (S - T) - left)": "(n > m + (S - T) - left)",
    "(n <= m + (S - T) + right)": "(n < m + (S - T) + right)",
    "max(last - below, 0), length), BLOCK)": "max(low - below, 0), length), BLOCK)",
    "b = min(max(low + above + 1, 0), length)": "b = min(max(last + above + 1, 0), length)",
    "start = min(max(low - below, 0), length)": "start = min(max(low - below + BLOCK, 0), length)",
    "end = min(max(last + above + 1, 0), length)": "end = min(max(last + above, 0), length)",
    'rLse = tl.where(rLse == float("-inf"), float("inf"), rLse)': "rLse = rLse",
    "kept((row + i_m) * counts + low,": "kept((row + i_m) * counts,",
    "kept((row + i_m) * counts + low_n,": "kept((row + i_m) * counts,",
    "i_h1 + i % (H // H1)": "i_h1",
    "i_b1 + i // (H // H1)": "i_b1",
    "rDp = tl.where(rKept, rDp * keep, 0.0)": "rDp = tl.where(rKept, rDp, 0.0)",
    "rDv * keep": "rDv",
    "rDs *= _slope(rS, scale_in)": "rDs *= 1.0",
    "rSum -= tl.exp2(rSink - rLse)": "rSum += tl.exp2(rSink - rLse)",
    "rSum = rSum * shrink + tl.exp2(rSink - base)": "rSum = rSum * shrink",
    "- tl.load(gDlse + row + i_m, mask=i_m < T, other=0.0)": "",
    "for r in range(GROUP):": "for r in range(1):",
    "i_b * 0 if RAGGED else i_b, i_h, at_q + low": "i_b * 0 if RAGGED else i_b, i_h, low",
    "min(low + ROWS, T) - 1 + shift": "min(low + ROWS, T) - 2 + shift",
    "gSinks + i_head * stride_sink": "gSinks + i_h * stride_sink",
    "(i_head - i_h) * stride_qh": "(i_head - i_head) * stride_qh",
    "((i_m - low) * H + i_head - i_h)": "((i_m - low) * H)",
    "(i_b.to(tl.int64) * H + i_head) * T": "(i_b.to(tl.int64) * H + i_h) * T",
    "% (H // HEADS) * HEADS": "% (H // HEADS)",
}


@pytest.mark.thorough
@pytest.mark.parametrize("stands", WRONG)
def test_a_wrong_kernel_is_seen(stands, tmp_path):
    text = SOURCE.read_text()
    assert stands in text
    (tmp_path / "wrong.py").write_text(text.replace(stands, WRONG[stands]))
    assert interpreted(tmp_path / "wrong.py").returncode != 0


@pytest.mark.parametrize("what", ["lse", "bias", "a bias that all share"])
def test_gradients_of_lse_and_bias_pass_through_vmap(what):
    """Inside vmap no tensor says that it requires a gradient, and the call went to the operator that has none of these two."""
    shared = what == "a bias that all share"
    x = torch.randn(2, 1, 5, 2, 16, requires_grad=True)
    bias = torch.randn(*(() if shared else (2,)), 1, 2, 5, 5, requires_grad=True)

    def total(x, bias):
        out, lse = attention(x, x, x, bias=None if what == "lse" else bias, return_lse=True)
        return (out * out).sum() + (lse * lse).sum()

    wrt = (x,) if what == "lse" else (x, bias)
    ours = torch.autograd.grad(torch.vmap(total, in_dims=(0, None if shared else 0))(x, bias).sum(), wrt)
    singly = torch.autograd.grad(sum(total(x[i], bias if shared else bias[i]) for i in range(2)), wrt)
    torch.testing.assert_close(ours, singly)
