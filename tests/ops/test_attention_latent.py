"""The backward of heads of 192 with values of 128 in one pass, in the simulator: as test_attention_wide has it."""

import contextlib
import re

import pytest
import torch

from attention_gradients import close, problem
from faulty_kernels import rewritten, without
from rooftile.core.kernel import OPS
from rooftile.cuda import compile as compiler
from rooftile.cuda import simulator
from rooftile.ops.attention import latent_kernels, reference
from rooftile.workbench.build import instances

OP = OPS["attention_backward"]
(KERNEL,) = latent_kernels.BACKWARD


def computed(call, level="checks", seed=None):
    with simulator.active(level, seed=seed):
        return KERNEL.run(*call)


SHAPES = [  # T, S around steps of 64 queries and tiles of 128 keys
    (1, 1, True), (1, 129, False), (64, 128, True), (65, 127, False), (128, 128, True), (129, 63, True), (127, 129, True), (40, 300, True),
    (320, 64, False), (200, 65, True), (257, 384, True), (384, 257, True),
]  # fmt: skip


@pytest.mark.sampled(7)
@pytest.mark.parametrize("t, s, causal", SHAPES)
def test_edges(t, s, causal):
    call = problem(t, s, 192, causal, torch.float16 if t % 2 else torch.bfloat16)
    assert close(call, computed(call))


@pytest.mark.parametrize("causal", [True, False])
def test_heads_that_share_keys(causal):
    call = problem(140, 150, 192, causal, b=2, h=6, g=2)
    assert close(call, computed(call))


def test_a_query_that_sees_nothing_gives_exactly_nothing():
    dq, _, _ = computed(problem(200, 65, 192, True))
    assert not dq[:, :135].any() and dq[:, 136:].any(-1).all()  # query 135 has one key: its weight is 1 whatever the score


def test_keys_past_the_end_where_scores_are_far_below_zero():
    """lse near -200: the keys past S score 0, and 2^(0 - lse) is inf."""
    dout, q, k, v, *_ = problem(70, 40, 192, False)
    q, k = q.abs() * 4, -k.abs() * 4
    call = (dout, q, k, v, *reference.attention(q, k, v, False, 0.0625), False, 0.0625)
    got = computed(call)
    assert all(g.isfinite().all() for g in got) and close(call, got)


def test_heads_that_lie_before_positions():
    call = problem(140, 140, 192, True, b=2, h=2)
    moved = [x.transpose(1, 2).contiguous().transpose(1, 2) if isinstance(x, torch.Tensor) else x for x in call]
    assert close(call, computed(moved))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_comes_first(seed):
    call = problem(260, 200, 192, True)
    assert close(call, computed(call, "values", seed))


REFUSED = {
    "the tensor is float32": lambda c: {n: x.float() if isinstance(x, torch.Tensor) else x for n, x in c.items()},
    "D=192 and values of 64: it is written for 192 and 128": lambda c: {**c, "v": c["v"][..., :64]},
    "there is nothing to compute": lambda c: {**c, "k": c["k"][:, :0], "v": c["v"][:, :0]},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_it_refuses(said):
    call = REFUSED[said](dict(zip(OP.names, problem(4, 4, 192, False, h=2))))
    with simulator.active("checks"):
        assert re.search(said, KERNEL.refuse(call) or "")


def test_who_asks_for_the_same_bits_has_two_passes(monkeypatch):
    names, call = [], {n: torch.zeros(1, 2048, 4, 128 if n in ("dout", "v", "out") else 192, dtype=torch.bfloat16) for n in OP.names[:5]}
    call |= {"lse": torch.zeros(1, 4, 2048), "causal": True, "scale": 1.0}
    with simulator.active("checks"):
        for asked in (False, True):
            monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda asked=asked: asked)
            names.append(OP.choose(call).kernel.name)
    assert names == ["cuda.v7_hopper_latent", "cuda.v6_hopper_wide"]


def test_no_spills_and_no_product_waits_for_another():
    found = {w.instance: w for w in instances(OP, KERNEL, every=True)}
    assert {"attention_backward<__half, true>", "attention_backward<__nv_bfloat16, false>"} <= set(found)
    for w in found.values():
        made = compiler.compiled(w.source, w.instance, "sm_90a")
        assert (made.spill_bytes, made.loss) == (0, ""), w.instance
        assert made.shared_bytes + w.shared <= 227 * 1024, w.instance


# ---- faults ------------------------------------------------------------------------------------------------------------------

ORDERING = re.compile(
    r"__sync(threads|warp)\(\);|mbarrier_(wait|arrive_expect)\(.*?\);|fence_async\(\);|bulk_(commit|wait_read)(<0>)?\(\);|barrier_sync\(.*?\);|"
    r"(producer_\w+|consumer_\w+)\(.*?\);|wgmma_(commit|wait<.>)\(.*?\);"
)
LINES = latent_kernels.V7.text.splitlines()
# What the simulator does not miss: a warp is brought together for wgmma, which it always is there.
FREE = [i for i, line in enumerate(LINES) if line.strip() == "__syncwarp();"]
NEEDED = [
    i
    for i, line in enumerate(LINES)
    if ORDERING.search(line) and not line.startswith("//") and "ROOFTILE_DEVICE" not in line and i not in FREE
]


def faulty(source, monkeypatch) -> bool:
    monkeypatch.setattr(latent_kernels, "V7", source)
    call = problem(330, 200, 192, False)
    try:
        return not close(call, computed(call, level="all"))
    except simulator.Found:
        return True


def test_whole_it_has_no_fault(monkeypatch):
    assert not faulty(latent_kernels.V7, monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize("line", NEEDED, ids=[f"line-{i + 1}" for i in NEEDED])
def test_no_barrier_fence_or_wait_can_be_taken_away(line, tmp_path, monkeypatch):
    assert faulty(without(latent_kernels.V7, line, ORDERING, tmp_path), monkeypatch)


WALKS = {  # as it stands, and forgotten
    "i_half += i == w.first ? 2 + 2 * i : 2;": "i_half += 2;",
    "if (++i == w.blocks) i = w.first;": "++i;",
    "head = step / walk,": "head = 0,",
    "i_s + HALF > S": "false",
    "const int low = key < S ? key + from : NEVER, high = key + 8 < S ? key + 8 + from : NEVER;": "const int low = key + from, high = key + 8 + from;",
}


@pytest.mark.parametrize("stands", WALKS)
def test_what_is_forgotten_is_seen(stands, tmp_path, monkeypatch):
    monkeypatch.setattr(latent_kernels, "V7", rewritten(latent_kernels.V7, stands, WALKS[stands], tmp_path))
    shared = problem(260, 100, 192, True, h=2, g=1)
    dout, q, k, v, *_ = problem(70, 40, 192, False)
    q, k = q.abs() * 4, -k.abs() * 4
    far = (dout, q, k, v, *reference.attention(q, k, v, False, 0.0625), False, 0.0625)
    with contextlib.suppress(simulator.Found):
        assert not all(close(call, computed(call)) for call in (shared, far))
