"""What the grid cannot say of cross_entropy: confident rows, padding, the logits' memory, messages."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import processes
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.cuda.launch import launch
from rooftile.ops import CrossEntropyLoss, cross_entropy
from rooftile.ops.cross_entropy import split_kernels
from rooftile.ops.cross_entropy.cuda_kernels import ONLINE, TOTAL


@pytest.mark.parametrize("lead", [5.0, 20.0, 60.0])
def test_a_confident_row_keeps_its_last_bits(lead):
    """1 - p is 6e-27 at a lead of 60: PyTorch's float32 loss and gradient are 0 there."""
    x = torch.zeros(1, 4, requires_grad=True)
    with torch.no_grad():
        x[0, 2] = lead
    loss = cross_entropy(x, torch.tensor([2]))
    loss.backward()
    rest = 3 * torch.tensor(-lead, dtype=torch.float64).exp()
    torch.testing.assert_close(loss.detach().double(), rest.log1p(), rtol=1e-6, atol=0)
    torch.testing.assert_close(x.grad[0, 2].double(), -rest / (1 + rest), rtol=1e-6, atol=0)


def test_a_common_shift_changes_nothing():
    x, t = torch.randn(4, 9), torch.tensor([0, 3, 8, 5])
    assert torch.equal(cross_entropy(x.round(), t), cross_entropy(x.round() + 4096, t))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_against_pytorch_with_padding(reduction, smoothing):
    x, t = torch.randn(7, 11, dtype=torch.float32), torch.tensor([1, -1, 10, 0, -1, 3, 3])
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours = CrossEntropyLoss(ignore_index=-1, label_smoothing=smoothing, reduction=reduction)(a, t)
    theirs = F.cross_entropy(b, t, ignore_index=-1, label_smoothing=smoothing, reduction=reduction)
    torch.testing.assert_close(ours, theirs)
    weight = torch.arange(1.0, ours.numel() + 1).reshape(ours.shape)
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_nothing_but_padding():
    x, t = torch.randn(3, 5, requires_grad=True), torch.full((3,), -100)
    assert cross_entropy(x, t).isnan() and cross_entropy(x, t, reduction="sum") == 0
    cross_entropy(x, t, reduction="sum").backward()
    assert torch.equal(x.grad, torch.zeros(3, 5))


def test_a_masked_target_costs_infinitely_much():
    x = torch.tensor([[0.0, float("-inf")]])
    assert cross_entropy(x, torch.tensor([1])) == float("inf")
    assert cross_entropy(x, torch.tensor([0])) == 0


INFINITE = """
import sys, torch
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
import rooftile.ops
inf, seen = float("inf"), 0
x = torch.randn(5, int(sys.argv[1]), generator=torch.Generator().manual_seed(0)).bfloat16()
x[0, 3] = x[1, 2] = x[1, 5] = x[2, -1] = inf  # alone; with another; in the row's last place, beside one of -inf; of another class
x[2, 4], x[3, 1] = -inf, inf
target = torch.tensor([3, 2, x.shape[1] - 1, 0, 4])
for name in ("cross_entropy", "cross_entropy_ahead"):
    for kernel in OPS[name].kernels:
        call = (x.clone(), target, -100, 0.0, 0.0, 0.0, *(["none"] if name == "cross_entropy" else []))
        given = dict(zip(OPS[name].names, call))
        with simulator.active():
            if kernel.name.startswith("triton") is (sys.argv[2] == "1") and kernel.objection(given) is None:
                made = kernel.bound(kernel.heuristic(given))(*call)
                loss = made[0] if isinstance(made, tuple) else made
                assert loss[:4].isnan().all() and loss[4].isfinite(), f"{kernel.name}: {loss.tolist()}"
                seen += 1
assert seen >= int(sys.argv[3]), seen
"""


@pytest.mark.parametrize("classes, triton, kernels", [(16, 0, 6), (4104, 0, 6), (16, 1, 4), (4104, 1, 3)])
def test_a_target_of_infinity_is_nan(classes, triton, kernels):
    """As in PyTorch, in every kernel: the sum that it is kept out of is finite, and of it alone the loss would be 0, with gradients of NaN."""
    x = torch.zeros(1, 3)
    x[0, 1] = float("inf")
    assert cross_entropy(x, torch.tensor([1])).isnan() and F.cross_entropy(x, torch.tensor([1])).isnan()
    done = processes.run(str(classes), str(triton), str(kernels), code=INFINITE, TRITON_INTERPRET=str(triton))
    assert done.returncode == 0, done.stderr[-3000:]


class TestOverwriting:
    def leaf(self):
        x = torch.randn(6, 10, requires_grad=True)
        return x, x * 1, torch.arange(6)

    def test_same_gradient_in_the_same_memory(self):
        _x, logits, t = self.leaf()
        plain = torch.autograd.grad(cross_entropy(logits, t), logits)[0]
        (made,) = torch.autograd.grad(cross_entropy(logits, t, inplace_backward=True), logits)
        assert made.data_ptr() == logits.data_ptr() and torch.equal(made, plain)

    def test_a_second_backward_is_refused(self):
        _, logits, t = self.leaf()
        loss = cross_entropy(logits, t, inplace_backward=True)
        loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_whoever_else_saved_the_logits_finds_out(self):
        _, logits, t = self.leaf()
        other = logits.square().sum()
        cross_entropy(logits, t, inplace_backward=True).backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            other.backward()

    def test_logits_that_are_no_rows_keep_their_values(self):
        x = torch.randn(10, 6, requires_grad=True)
        logits = x.t()
        before = x.detach().clone()
        cross_entropy(logits, torch.arange(6), inplace_backward=True).backward()
        assert torch.equal(x.detach(), before)

    @pytest.mark.parametrize(
        "view", [lambda x: x, lambda x: x[:6], lambda x: x.view(-1, 10)], ids=["leaf", "rows of a leaf", "leaf as rows"]
    )
    def test_a_parameter_keeps_its_values(self, view):
        x = torch.randn(6, 10, requires_grad=True)
        before = x.detach().clone()
        cross_entropy(view(x), torch.arange(6), inplace_backward=True).backward()
        assert torch.equal(x.detach(), before) and x.grad.data_ptr() != x.data_ptr()

    @pytest.mark.parametrize("kept", ["made again", "by hooks"])
    def test_where_hooks_keep_what_is_saved(self, kept):
        """Of what they give back nobody asks the version: who else saved the logits, or came a second time, took the gradient for them."""
        x, t = torch.randn(6, 10, requires_grad=True), torch.arange(6)

        def loss(x, inplace):
            logits = x * 1
            other = logits.square().sum()  # made first, differentiated last
            return other + cross_entropy(logits, t, inplace_backward=inplace)

        (plain,) = torch.autograd.grad(loss(x, False), x)
        if kept == "made again":
            made = checkpoint(loss, x, True, use_reentrant=False)
        else:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                made = loss(x, True)
        for _ in range(2):
            torch.testing.assert_close(torch.autograd.grad(made, x, retain_graph=True)[0], plain)


def test_messages_have_both_numbers():
    x = torch.zeros(2, 5)
    with pytest.raises(ValueError, match=r"target\[1\] is 5, but the logits have 5 classes"):
        cross_entropy(x, torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="M is 3 in target, but 2 in logits"):
        cross_entropy(x, torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="reduction is 'avg'"):
        cross_entropy(x, torch.tensor([0, 1]), reduction="avg")
    with pytest.raises(ValueError, match=r"label_smoothing is 1\.5"):
        cross_entropy(x, torch.tensor([0, 1]), label_smoothing=1.5)
    with pytest.raises(ValueError, match="class weights are not supported"):
        CrossEntropyLoss(weight=torch.ones(5))
    with pytest.raises(ValueError, match="class probabilities are not supported"):
        CrossEntropyLoss()(x, torch.full((2, 5), 0.2))


def test_soft_cap_and_z_loss_are_their_formulas():
    logits, target = torch.randn(5, 40, dtype=torch.float64).mul(20).float(), torch.tensor([0, 3, -100, 39, 7])
    for cap, z in ((0.0, 0.5), (8.0, 0.0), (8.0, 0.5)):
        x = logits.clone().requires_grad_()
        y = logits.double().requires_grad_()
        capped = cap * torch.tanh(y / cap) if cap else y
        rows = torch.nn.functional.cross_entropy(capped, target, reduction="none") + torch.where(
            target >= 0, z * capped.logsumexp(1) ** 2, 0
        )
        want = rows.sum() / 4
        loss = cross_entropy(x, target, z_loss=z, softcap=cap)
        torch.testing.assert_close(loss.double(), want, rtol=1e-5, atol=1e-6)
        (dx,), (dy,) = torch.autograd.grad(loss, x), torch.autograd.grad(want, y)
        torch.testing.assert_close(dx.double(), dy, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["z_loss", "softcap"])
def test_below_zero_is_refused(name):
    for wrong, said in ((-1.0, "it must be 0"), (float("nan"), "takes a finite number"), (float("inf"), "takes a finite number")):
        with pytest.raises(ValueError, match=f"{name} is {wrong}, {said}"):
            cross_entropy(torch.zeros(1, 2), torch.tensor([0]), **{name: wrong})


@pytest.mark.parametrize("kernel", ["cuda.v3_online", "cuda.v8_bulk"])
@pytest.mark.parametrize("config", [ONLINE[2], {"threads": 128, "vecs": 2, "stages": 5, "per": 1}])
@pytest.mark.parametrize("counts", ["110010111", "000000001", "011111111", "100000000"])
def test_copies_run_ahead_past_rows_that_do_not_count(counts, config, kernel):
    """Two blocks take 9 rows of two steps; more stages than a row has steps run two rows ahead. Races are watched."""
    logits = torch.randn(9, 3000, generator=torch.Generator().manual_seed(1)).bfloat16()
    target = torch.tensor([i * 300 if c == "1" else -100 for i, c in enumerate(counts)])
    call = (logits, target, -100, 0.0, 0.0, 0.0, "none")
    with simulator.active("all"):
        made = OPS["cross_entropy"].kernel(kernel).bound(config)(*call)
    for a, b in zip(made, OPS["cross_entropy"].spec.reference(*call)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("parked", [0, 16 * 100, 1 << 20])
@pytest.mark.parametrize("smoothing, cap", [(0.0, 0.0), (0.1, 3.0), (0.0, 24.0)])
def test_what_shared_memory_does_not_hold_of_a_row_is_read_again(parked, smoothing, cap):
    """The loss and the gradient at once, of rows in part, or not at all, in shared memory; padding and a class there is not among them."""
    logits = torch.randn(5, 3000, generator=torch.Generator().manual_seed(1)).mul(4).bfloat16()
    target = torch.tensor([0, 2999, -100, 1500, 850])
    call = (target, -100, smoothing, 0.01, cap)
    ours, wanted = logits.clone(), logits.clone()
    with simulator.active("all"):
        loss = OPS["cross_entropy_ahead"].kernel("cuda.v6_ahead").bound({"park": parked, "threads": 128})(ours, *call)
    torch.testing.assert_close(loss, OPS["cross_entropy_ahead"].spec.reference(wanted, *call), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours, wanted, rtol=1e-2, atol=1e-6)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("cluster, classes", [(2, 3000), (4, 3000), (8, 3000), (8, 64)])
@pytest.mark.parametrize("smoothing, cap", [(0.0, 0.0), (0.1, 3.0), (0.0, 24.0)])
def test_blocks_of_a_cluster_share_a_row(cluster, classes, smoothing, cap):
    """Targets in the first share, the last and at a share's edge; padding, a class there is not, a NaN, and fewer vectors than threads."""
    edge = -(-classes // 8 // cluster) * 8
    logits = torch.randn(7, classes, generator=torch.Generator().manual_seed(1)).mul(4).bfloat16()
    logits[5, classes - 1] = logits[6, 3] = float("nan")
    target = torch.tensor([0, classes - 1, -100, edge, edge - 1, 3, 3])
    call = (target, -100, smoothing, 0.01, cap)
    ours, wanted = logits.clone(), logits.clone()
    kernel = OPS["cross_entropy_ahead"].kernel("cuda.v7_cluster").bound({"cluster": cluster, "threads": 64})
    with simulator.active("all", seed=cluster):
        loss = kernel(ours, *call)
    reference = OPS["cross_entropy_ahead"].spec.reference(wanted, *call)
    torch.testing.assert_close(loss, reference, rtol=1e-5, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(ours, wanted, rtol=1e-2, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("cap", [1e-5, 0.01, 30.0, 3e4])
def test_soft_caps_of_whole_vectors(cap):
    """The polynomial and the hyperbolic tangent meet at half the cap; caps whose powers leave float32 take the latter."""
    logits = cap * torch.linspace(-2, 2, 2048).repeat(2, 1)
    logits[1, ::7] = float("-inf")
    call = (logits, torch.tensor([5, 900]), -100, 0.1, 0.0, cap, "none")
    op = OPS["cross_entropy"]
    wanted = op.spec.reference(*call)
    with simulator.active():
        made = op.kernel("cuda.v3_online").bound(ONLINE[2])(*call)
        back = (torch.ones(2), *call[:2], *wanted[1:], *call[2:6])
        dx = op.backward.kernel("cuda.v4_vector").bound({"threads": 128, "vecs": 2, "walk": 3})(*back)
    for a, b in zip(made, wanted):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(dx, op.backward.spec.reference(*back), rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cap, z", [(30.0, 0.0), (8.0, 0.01), (900.0, 0.0), (3e4, 0.0)])
@pytest.mark.parametrize(
    "kernel, config", [("cuda.v3_online", ONLINE[2]), ("cuda.v8_bulk", {"threads": 128, "vecs": 8, "stages": 2, "per": 2})]
)
def test_sixteen_bits_within_a_cap(kernel, config, cap, z, dtype):
    """In one go, but for vectors with a logit beyond the cap or none, and past the row's end; each row has one of these. Two terms, three or six by what lies
    within a quarter of the cap, half of it, all of it; the target's neighbour, which hides it, is the largest or the smallest, in the first of two and the second."""
    logits = torch.randn(18, 5000, generator=torch.Generator().manual_seed(1)).clamp(-3, 3).to(dtype)
    target = torch.tensor([0, 1500, 7, 2, 900, 11, 4999, 3000, -100, 4, 3, 2, 4999, 700, 2501, 2500, 4998, 1])
    for row, part in ((12, 0.99), (13, 0.49), (14, 0.24), (15, 0.99)):
        logits[row] = part * min(cap, 32) * torch.linspace(-1, 1, 5000)
    logits[15, 2501], logits[16, 4999], logits[17, 0] = 0.99 * min(cap, 32), 3.9, -3.9
    logits[0, 3] = logits[7, -1] = 3.5  # the maximum comes first, and last
    logits[1, 1500], logits[1, :1500], logits[9] = 3.9, -3, -3  # a class far ahead, all alike
    for row, what in enumerate((1.5 * cap, 1.5 * cap, float("-inf"), float("nan"), float("inf")), 2):
        logits[row, 2500 + row] = what
    logits[10:12] = -1.5 * cap
    logits[10, ::2] = logits[11, 1::2] = -0.4 * cap
    call = (logits, target, -100, 0.0, z, cap, "none")
    op = OPS["cross_entropy"]
    with simulator.active("all"):
        made = op.kernel(kernel).bound(config)(*call)
    for name, a, b in zip(op.spec.returns, made, op.spec.reference(logits.double(), *call[1:])):
        few = 1e-15 if name in ("loss", "miss") else 5e-7  # a logarithm of some 1 is one of sums of some 1
        torch.testing.assert_close(a.double(), b.double(), rtol=2e-6, atol=few, equal_nan=True)


@pytest.mark.parametrize("kernel, config", [("cuda.v6_ahead", {"park": 0, "threads": 128}), ("cuda.v6_ahead", {"park": 1 << 20, "threads": 128}),
                                            ("cuda.v7_cluster", {"cluster": 2, "threads": 64})])  # fmt: skip
def test_gradients_of_sixteen_bits_within_a_cap(kernel, config):
    """Each row has a thread that finds something else than the others: the target, a logit beyond half the cap, all of it or none; and all of the sixth do. The
    target's neighbour, which hides it, is the largest by far in the seventh."""
    logits = torch.randn(8, 5000, generator=torch.Generator().manual_seed(1)).mul(4).clamp(-14, 14).bfloat16()
    logits[1, 2500], logits[2, 700], logits[3, 4990], logits[5, ::3] = 40, float("-inf"), -40, 25
    logits[6, 2000], logits[7] = 29, 7 * torch.linspace(-1, 1, 5000)
    call = (torch.tensor([0, 1500, 7, 4999, 900, 3, 2001, 4998]), -100, 0.0, 0.01, 30.0)
    ours, op = logits.clone(), OPS["cross_entropy_ahead"]
    wanted = logits.double()
    with simulator.active("all"):
        loss = op.kernel(kernel).bound(config)(ours, *call)
    torch.testing.assert_close(loss.double(), op.spec.reference(wanted, *call), rtol=2e-6, atol=0)
    torch.testing.assert_close(ours.double(), wanted, rtol=2.0**-8, atol=0)  # rounded once


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("smoothing, walk", [(0.0, 1), (0.1, 1), (0.0, 2), (0.1, 3)])
def test_a_later_gradient_of_sixteen_bits_within_half_a_cap(smoothing, walk, dtype):
    """A thread's vectors go one way or the other together: the target in the first or the last of them, a logit beyond half the cap or none, past the row's end."""
    logits = torch.randn(8, 3648, generator=torch.Generator().manual_seed(2)).mul(4).clamp(-14, 14).to(dtype)
    logits[1, 2500], logits[2, 700], logits[3, 3640], logits[5, ::3], logits[6, 9] = 40, float("-inf"), -40, 25, float("nan")
    target, settings = torch.tensor([0, 3647, 7, 1023, -100, 3, 900, 1024]), (-100, smoothing, 0.01, 30.0, "none")
    op = OPS["cross_entropy"]
    _, *saved = op.spec.reference(logits.double(), target, *settings)
    back = (torch.linspace(0.5, 2, 8), logits, target, *(x.float() for x in saved), *settings[:4])
    with simulator.active("all"):
        dx = op.backward.kernel("cuda.v4_vector").bound({"threads": 64, "vecs": 4, "walk": walk})(*back)
    true = op.backward.spec.reference(*(x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in back))
    torch.testing.assert_close(
        dx.double(), true.double(), rtol=torch.finfo(dtype).eps, atol=1e-7, equal_nan=True
    )  # rounded once; float16 ends at 6e-8


SPLIT = """
import importlib.util, sys, torch
from rooftile.workbench import check, interpreter
from rooftile.ops.cross_entropy.reference import cross_entropy
spec = importlib.util.spec_from_file_location("given", sys.argv[1])
given = importlib.util.module_from_spec(spec)
spec.loader.exec_module(given)
checked, loaded = interpreter._checked, []
def watched(what, *rest):
    addresses = checked(what, *rest)
    loaded.extend(addresses.ravel().tolist() if what == "load" else ())
    return addresses
interpreter._checked = watched

def agree(m, v, dtype, tile, tiles, *settings, strange=False):
    x = torch.randn(m, v, generator=torch.Generator().manual_seed(m + v)).mul(4).to(dtype)
    x[:, v - v // 8 - 1] += torch.arange(m) % 3 * 20  # in some rows the maximum comes late
    target = torch.arange(m) * 7 % v
    target[-1], target[2::5] = v - 1, -100
    if strange:
        x[0, 1:], x[1, : v // 3], x[3], x[4, v - 1] = float("-inf"), float("-inf"), float("-inf"), float("nan")
        x[5, target[5]] = float("-inf")
    call, loaded[:] = (x, target, -100, *settings), []
    for watch in check.before_run:
        watch([x, target])
    run = lambda: given.cross_entropy_split(*call, config={"tile": tile, "tiles": tiles, "warps": 1})
    with check.poisoned():
        first, second = run(), run()
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(first, second)), "two runs differ"
    for name, a, b in zip(("loss", "count", "peak", "logsum", "miss"), first, cross_entropy(*call)):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6, equal_nan=True, msg=lambda said: f"{m, v, dtype, settings} {name}: {said}")
    row = x.stride(0) * x.itemsize
    touched = {(a - x.data_ptr()) // row for a in loaded if 0 <= a - x.data_ptr() < m * row}
    assert touched == set(torch.nonzero(target != -100)[:, 0].tolist()), "rows that are read"

for settings in ((0.0, 0.0, 0.0, "mean"), (0.1, 0.01, 3.0, "sum"), (0.1, 0.0, 0.0, "none")):
    agree(67, 100, torch.float32, 64, 3, *settings)  # 3 parts of 3 tiles of 16, the last of 4 columns; two programs join
    agree(9, 320, torch.bfloat16, 64, 4, *settings)  # whole tiles of whole vectors, parts of 4, 3 and 3
    agree(4, 7, torch.float32, 64, 2, *settings)  # less than a part
    agree(3, 1, torch.float32, 64, 2, *settings)
    agree(4, 300, torch.float32, 16, 1, *settings)  # more parts than are joined at once
    if not settings[2]:
        agree(7, 100, torch.float32, 64, 2, *settings, strange=True)
"""
WRONG = {  # what stands in the kernels' source, and what comes in its place
    'rX = tl.where(i_v == i_t, float("-inf"), rX)': "rX = rX",
    "(i_part < parts)[:, None]": "(i_part < parts - 1)[:, None]",
    'lane_sum * _exp(lane_max - tl.where(new == float("-inf"), 0.0, new))': "lane_sum",
    "rSum * _exp(rTop - base[None, :])": "rSum",
    "rest * _exp(top - base)": "rest",
    "spread += tl.sum": "spread = tl.sum",
    "(i >= head).to(tl.int32)": "(i > head).to(tl.int32)",
    "n = tl.where(read, V, 0)": "n = V",
    "tl.store(gTicket, 0)": "pass",
    'gTicket, 1, sem="acq_rel"': 'gTicket, 1, sem="relaxed"',
    "tl.sum(counts.to(tl.float32), 0)": "tl.sum((i_m < M).to(tl.float32), 0)",
}


def split(path):
    return processes.run(str(path), code=SPLIT, TRITON_INTERPRET="1")


def test_parts_of_rows_are_joined():
    """Through the interpreter, in a child, in tiles of 4 and 16: targets in each part, in the first and the last column; what is padding is not read."""
    done = split(split_kernels.__file__)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.thorough
@pytest.mark.parametrize("stands", WRONG)
def test_a_wrong_join_is_seen(stands, tmp_path):
    text = Path(split_kernels.__file__).read_text()
    assert stands in text
    (tmp_path / "wrong.py").write_text(text.replace(stands, WRONG[stands]))
    assert split(tmp_path / "wrong.py").returncode != 0


def test_short_rows_are_not_split():
    kernel, (x, target) = OPS["cross_entropy"].kernel("triton.split"), (torch.empty(2, 16383), torch.empty(2, dtype=torch.int64))
    call = {"logits": x.bfloat16(), "target": target, "softcap": 0.0}
    assert kernel.declines(call) == "a row of 32766 bytes is no more than a program's share; from 32768 it is cut into parts"
    assert kernel.declines(call | {"logits": x}) is None
    assert kernel.declines(call | {"softcap": 30.0}) == "a soft cap of 30: its tanh is cheaper in CUDA C++"


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("m", [0, 1, 1025, 8191, 8193, 20000])
def test_all_rows_are_added_up(m, mean):
    """By a block of 1024 threads, each of which asks for eight of them at a time: rows of the second to eighth, and of a second turn."""
    row, target = torch.randint(-9, 10, (m,)).float(), torch.randint(0, 3, (m,))
    loss, count = torch.empty(()), torch.empty(())
    with simulator.active():
        launch(TOTAL, "total", 1, 1024, loss, count, row, target, m, 1, mean)
    rows = (target != 1).sum().float() if mean else torch.ones(())
    assert torch.equal(count, rows)
    torch.testing.assert_close(loss, row.sum() / rows, equal_nan=True)
