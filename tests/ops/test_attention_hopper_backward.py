"""Every backward for Hopper in CUDA C++ in the simulator: what the grid's cases do not reach, what is refused, and what it is compiled to.

And of the wide heads' kernels, that no line that orders anything can be taken away; v5's own parts are test_attention_cuda.py's.
"""

import contextlib
import re

import pytest
import torch

from attention_gradients import close, far_below_zero, problem
from faulty_kernels import orders, rewritten, without
from rooftile.core.kernel import OPS
from rooftile.cuda import compile as compiler
from rooftile.cuda import simulator
from rooftile.ops.attention import cuda_kernels, latent_kernels, wide_kernels
from rooftile.workbench.build import instances

OP = OPS["attention_backward"]
KERNELS = {k.name: k for k in (*cuda_kernels.BACKWARD, *wide_kernels.BACKWARD, *latent_kernels.BACKWARD)}
V5, ORDERED, V6, V7 = KERNELS
WIDTHS = {V5: (64, 128), ORDERED: (128, 64), V6: (256, 192), V7: (192,)}  # each second is of another width: what sampled(2) takes
EACH = pytest.mark.parametrize("name, d", [(name, d) for name, widths in WIDTHS.items() for d in widths])


def computed(call, name, level="checks", seed=None):
    with simulator.active(level, seed=seed):
        return KERNELS[name].run(*call)


LENGTHS = [  # T, S around steps of 64, 80 and 128 queries, tiles of 64 and 128 keys
    (1, 1, True), (1, 129, False), (127, 128, False), (65, 127, False), (129, 63, True), (64, 257, False), (300, 40, True), (200, 65, True), (40, 300, True),
    (193, 384, True), (80, 129, False), (235, 300, False), (128, 128, True), (384, 257, True), (320, 64, False), (127, 129, True), (65, 128, True),
]  # fmt: skip


@EACH
@pytest.mark.sampled(13)
@pytest.mark.parametrize("t, s, causal", LENGTHS)
def test_edges(t, s, causal, name, d):
    call = problem(t, s, d, causal, torch.float16 if t % 2 else torch.bfloat16)
    assert close(call, computed(call, name))


@EACH
@pytest.mark.sampled(3)
@pytest.mark.parametrize("causal", [True, False])
def test_heads_that_share_keys(causal, name, d, monkeypatch):
    """The first tile of keys is seen by all queries, the last by the last block alone: the walk to the next head begins anew at another place."""
    monkeypatch.setattr(cuda_kernels, "walked", lambda most, group, tiles: group)  # of so few tiles each would have its own
    call = problem(140, 150, d, causal, b=2, h=6, g=2)
    assert close(call, computed(call, name))


@EACH
@pytest.mark.sampled(2)
def test_a_query_that_sees_nothing_gives_exactly_nothing(name, d):
    dq, _, _ = computed(problem(200, 65, d, True), name)
    assert not dq[:, :135].any() and dq[:, 136:].any(-1).all()  # query 135 has one key: its weight is 1 whatever the score


@EACH
@pytest.mark.sampled(2)
def test_keys_past_the_end_where_scores_are_far_below_zero(name, d):
    call = far_below_zero(d)
    got = computed(call, name)
    assert all(g.isfinite().all() for g in got) and close(call, got)


def same(name, made, call, again):
    """To the bit, where nothing is summed by atomics."""
    return close(call, made) if KERNELS[name].varies else all(map(torch.equal, made, again))


@EACH
@pytest.mark.sampled(2)
def test_heads_that_lie_before_positions(name, d):
    call = problem(140, 140, d, True, b=2, h=2)
    moved = [x.transpose(1, 2).contiguous().transpose(1, 2) if isinstance(x, torch.Tensor) else x for x in call]
    assert same(name, computed(moved, name), call, computed(call, name))


@EACH
@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_comes_first(seed, name, d):
    """Blocks and threads in another order."""
    call = problem(260, 200, d, True)
    assert same(name, computed(call, name, "values", seed), call, computed(call, name, "values"))


# ---- what is refused ---------------------------------------------------------------------------------------------------------

WRITTEN_FOR = {V6: "256 and 256, and for 192 and 128", V7: "192 and 128"}
REFUSED = {  # the sentence for a width, and what is changed
    "the tensor is float32": lambda c: {n: x.float() if isinstance(x, torch.Tensor) else x for n, x in c.items()},
    "D={d} and values of 32: it {takes}": lambda c: {**c, "v": c["v"][..., :32]},
    "D=32{narrow}": lambda c: {n: x[..., :32] if isinstance(x, torch.Tensor) and n != "lse" else x for n, x in c.items()},
    "there is nothing to compute": lambda c: {**c, "k": c["k"][:, :0], "v": c["v"][:, :0]},
    "dout with strides .* is not made of rows aligned to 16 bytes": lambda c: {**c, "dout": c["dout"][:1, :1, :1, :1].expand(c["dout"].shape)},
    "k with strides .* at 2 bytes past": lambda c: {**c, "k": torch.cat([c["k"].reshape(-1)] * 2)[1 : 1 + c["k"].numel()].view(c["k"].shape)},
}  # fmt: skip


@EACH
@pytest.mark.parametrize("said", REFUSED)
def test_what_it_refuses(said, name, d):
    call, takes = dict(zip(OP.names, problem(4, 4, d, False, h=2))), f"is written for {WRITTEN_FOR.get(name)}"
    narrow = f" and values of 32: it {takes}" if name in WRITTEN_FOR else ", it is written for 64 and 128"
    words = said.format(d=d, takes=takes if name in WRITTEN_FOR else "takes values as wide as keys", narrow=narrow)
    with simulator.active("checks"):
        assert KERNELS[name].refuse(call) is None
        assert re.search(f"{words}$" if said.startswith("D=") else words, KERNELS[name].refuse(REFUSED[said](call)) or "")
    assert KERNELS[name].refuse(call)  # no simulator, and no GPU


def test_who_asks_for_the_same_bits_has_two_passes(monkeypatch):
    names, call = [], {n: torch.zeros(1, 2048, 4, 128 if n in ("dout", "v", "out") else 192, dtype=torch.bfloat16) for n in OP.names[:5]}
    call |= {"lse": torch.zeros(1, 4, 2048), "causal": True, "scale": 1.0}
    with simulator.active("checks"):
        for asked in (False, True):
            monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda asked=asked: asked)
            names.append(OP.choose(call).kernel.name)
    assert names == [V7, V6]


# ---- what it is compiled to --------------------------------------------------------------------------------------------------

# Registers a thread at most, and how many instances there are at least.
BUILT = {V5: (168, 24), ORDERED: (168, 21), V6: (168, 20), V7: (255, 8)}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == V7 else pytest.mark.thorough) for n in KERNELS])
def test_no_spills_and_no_product_waits_for_another(name):
    registers, least = BUILT[name]
    ops = (op for op in (OP, OPS["rotary_attention_backward"]) if name in (k.name for k in op.kernels))
    found = {w.instance: w for op in ops for w in instances(op, op.kernel(name), every=True)}
    assert len(found) >= least
    assert name != V5 or any(n.endswith("64, true, false, true>") for n in found)  # turned back
    for w in found.values():
        made = compiler.compiled(w.source, w.instance, "sm_90a")
        assert (made.spill_bytes, made.loss) == (0, ""), w.instance
        assert made.registers <= registers and made.shared_bytes + w.shared <= 227 * 1024, w.instance


# ---- faults ------------------------------------------------------------------------------------------------------------------

PLACES = {V6: (wide_kernels, "V6"), V7: (latent_kernels, "V7")}
SOURCES = {name: getattr(*place) for name, place in PLACES.items()}


def faulty(name, source, d, monkeypatch) -> bool:
    monkeypatch.setattr(*PLACES[name], source)
    call = problem(330, 200, d, False)
    try:
        return not close(call, computed(call, name, level="all"))
    except simulator.Found:
        return True


@pytest.mark.parametrize("name, d", [(name, d) for name in PLACES for d in WIDTHS[name]])  # ahead, and not
def test_whole_it_has_no_fault(name, d, monkeypatch):
    assert not faulty(name, SOURCES[name], d, monkeypatch)


def where(name, words, further):
    """The indices of the lines so many further on than those with these words."""
    return [i + further for i, line in enumerate(SOURCES[name].text.splitlines()) if words in line]


# What the simulator does not miss: a warp brought together for wgmma, which it always is there; of V6 a commit that the next product's makes good, and a wait
# for queries that whoever left P has waited for; of V7 a second wgmma_fence since the last wait, though it is for other registers.
FREE = {
    V6: {*where(V6, "void gradient(", 7), *where(V6, "gradient<T, D>(dk", -1)},
    V7: {*where(V7, "void add_values(", 3), *where(V7, "void add_keys(", 1)},
}
NEEDED = [(name, i) for name in PLACES for i in orders(SOURCES[name].text, "__syncwarp();") if i not in FREE[name]]


@pytest.mark.thorough
@pytest.mark.parametrize("name, line", NEEDED, ids=[f"{name}-{i + 1}" for name, i in NEEDED])
def test_no_barrier_fence_or_wait_can_be_taken_away(name, line, tmp_path, monkeypatch):
    source = without(SOURCES[name], line, tmp_path)
    assert any(faulty(name, source, d, monkeypatch) for d in WIDTHS[name])


FORGOTTEN = {  # as it stands, and forgotten
    V6: {
        "i = w.first, ++i_h, gRow += w.first * 2 * BLOCK": "i = w.first, ++i_h",
        "if (++i == w.blocks) i = w.first;": "++i;",
        "if (w.count == 0)": "if (false)",
    },
    V7: {
        "i_half += i == w.first ? 2 + 2 * i : 2;": "i_half += 2;",
        "if (++i == w.blocks) i = w.first;": "++i;",
        "head = step / walk,": "head = 0,",
        "i_s + HALF > S": "false",
        "const int low = key < S ? key + from : NEVER, high = key + 8 < S ? key + 8 + from : NEVER;": "const int low = key + from, high = key + 8 + from;",
    },
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name, stands", [(name, stands) for name in FORGOTTEN for stands in FORGOTTEN[name]])
def test_what_is_forgotten_is_seen(name, stands, tmp_path, monkeypatch):
    monkeypatch.setattr(*PLACES[name], rewritten(SOURCES[name], stands, FORGOTTEN[name][stands], tmp_path))
    with contextlib.suppress(simulator.Found):
        assert not all(close(call, computed(call, name)) for call in (problem(260, 100, 192, True, h=2, g=1), far_below_zero(192)))
