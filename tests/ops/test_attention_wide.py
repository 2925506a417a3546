"""The wide heads' backward in CUDA C++ in the simulator: what the grid's cases do not reach, and that no line that orders anything can be taken away."""

import contextlib
import re

import pytest
import torch

from attention_gradients import close, problem
from faulty_kernels import rewritten, without
from rooftile.core.kernel import OPS
from rooftile.cuda import compile as compiler
from rooftile.cuda import simulator
from rooftile.ops.attention import reference, wide_kernels
from rooftile.workbench.build import instances

OP = OPS["attention_backward"]
(KERNEL,) = wide_kernels.BACKWARD


def computed(call, level="checks", seed=None):
    with simulator.active(level, seed=seed):
        return KERNEL.run(*call)


SHAPES = [  # T, S around tiles of 64, and of 128 queries
    (1, 1, 192, True), (1, 129, 256, True), (127, 128, 192, False), (129, 63, 192, True), (64, 65, 256, False), (65, 128, 256, True),
    (200, 65, 256, True), (40, 300, 192, True), (193, 384, 192, True), (192, 320, 256, False),
]  # fmt: skip


@pytest.mark.sampled(7)
@pytest.mark.parametrize("t, s, d, causal", SHAPES)
def test_edges(t, s, d, causal):
    call = problem(t, s, d, causal, torch.float16 if t % 2 else torch.bfloat16)
    assert close(call, computed(call))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("d", [192, 256])
@pytest.mark.parametrize("causal", [True, False])
def test_heads_that_share_keys(causal, d):
    call = problem(140, 150, d, causal, b=2, h=6, g=2)
    assert close(call, computed(call))


def test_a_query_that_sees_nothing_gives_exactly_nothing():
    call = problem(200, 65, 192, True)
    dq, _, _ = computed(call)
    assert not dq[:, :135].any() and dq[:, 136:].any(-1).all()  # query 135 has one key: its weight is 1 whatever the score


def test_keys_past_the_end_where_scores_are_far_below_zero():
    """lse near -200: the keys past S score 0, and 2^(0 - lse) is inf."""
    dout, q, k, v, *_ = problem(70, 40, 256, False)
    q, k = q.abs() * 4, -k.abs() * 4
    call = (dout, q, k, v, *reference.attention(q, k, v, False, 0.0625), False, 0.0625)
    got = computed(call)
    assert all(g.isfinite().all() for g in got) and close(call, got)


def test_heads_that_lie_before_positions():
    call = problem(140, 140, 256, True, b=2, h=2)
    moved = [x.transpose(1, 2).contiguous().transpose(1, 2) if isinstance(x, torch.Tensor) else x for x in call]
    assert all(map(torch.equal, computed(moved), computed(call)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_bits_whatever_comes_first(seed):
    call = problem(260, 200, 192, True)
    assert all(map(torch.equal, computed(call, "values"), computed(call, "values", seed)))


REFUSED = {
    "the tensor is float32": lambda c: {n: x.float() if isinstance(x, torch.Tensor) else x for n, x in c.items()},
    "D=256 and values of 128: it is written for 256 and 256, and for 192 and 128": lambda c: {**c, "v": c["v"][..., :128]},
    "there is nothing to compute": lambda c: {**c, "k": c["k"][:, :0], "v": c["v"][:, :0]},
    "dout with strides .* is not made of rows aligned to 16 bytes": lambda c: {**c, "dout": c["dout"][:1, :1, :1, :1].expand(c["q"].shape)},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_it_refuses(said):
    call = REFUSED[said](dict(zip(OP.names, problem(4, 4, 256, False, h=2))))
    with simulator.active("checks"):
        assert re.search(said, KERNEL.refuse(call) or "")


@pytest.mark.thorough
def test_no_spills_and_no_product_waits_for_another():
    found = {w.instance: w for w in instances(OP, KERNEL, every=True)}
    assert len(found) >= 12
    for w in found.values():
        made = compiler.compiled(w.source, w.instance, "sm_90a")
        assert (made.spill_bytes, made.loss) == (0, ""), w.instance
        assert made.registers <= 168 and made.shared_bytes + w.shared <= 227 * 1024, w.instance


# ---- faults ------------------------------------------------------------------------------------------------------------------

ORDERING = re.compile(
    r"__sync(threads|warp)\(\);|mbarrier_(wait|arrive_expect)\(.*?\);|fence_async\(\);|bulk_(commit|wait_read)(<0>)?\(\);|barrier_sync\(.*?\);|"
    r"(producer_\w+|consumer_\w+)\(.*?\);|wgmma_(commit|wait<.>)\(.*?\);"
)
LINES = wide_kernels.V6.text.splitlines()
# What the simulator does not miss: a commit that the next product's makes good, and a wait for queries that whoever left P has waited for.
FREE = [next(i for i, line in enumerate(LINES) if "void gradient(" in line) + 7]
FREE += [i - 1 for i, line in enumerate(LINES) if "gradient<T, D>(dk" in line]
NEEDED = [
    i
    for i, line in enumerate(LINES)
    if ORDERING.search(line) and not line.startswith("//") and "ROOFTILE_DEVICE" not in line and i not in FREE
]


def faulty(source, d, monkeypatch) -> bool:
    monkeypatch.setattr(wide_kernels, "V6", source)
    call = problem(330, 200, d, False)
    try:
        return not close(call, computed(call, level="all"))
    except simulator.Found:
        return True


@pytest.mark.parametrize("d", [192, 256])
def test_whole_it_has_no_fault(d, monkeypatch):
    assert not faulty(wide_kernels.V6, d, monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize("line", NEEDED, ids=[f"line-{i + 1}" for i in NEEDED])
def test_no_barrier_fence_or_wait_can_be_taken_away(line, tmp_path, monkeypatch):
    source = without(wide_kernels.V6, line, ORDERING, tmp_path)
    assert any(faulty(source, d, monkeypatch) for d in (192, 256))  # ahead, and not


WALKS = {  # as it stands, and forgotten
    "i = w.first, ++i_h, gRow += w.first * 2 * BLOCK": "i = w.first, ++i_h",
    "if (++i == w.blocks) i = w.first;": "++i;",
    "if (w.count == 0)": "if (false)",
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("stands", WALKS)
def test_a_walk_that_misses_the_next_head_is_seen(stands, tmp_path, monkeypatch):
    monkeypatch.setattr(wide_kernels, "V6", rewritten(wide_kernels.V6, stands, WALKS[stands], tmp_path))
    call = problem(260, 100, 192, True, h=2, g=1)
    with contextlib.suppress(simulator.Found):
        assert not close(call, computed(call))
