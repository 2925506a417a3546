"""The backward of a window and of packed sequences in CUDA C++ in the simulator: what the grid's cases do not reach, and wrong kernels of its own kind."""

import contextlib
import re
from functools import partial
from itertools import accumulate

import pytest
import torch

from faulty_kernels import rewritten, some
from rooftile import attention, attention_varlen
from rooftile.core.kernel import OPS
from rooftile.cuda import compile as compiler
from rooftile.cuda import simulator
from rooftile.ops.attention import banded_kernels, cuda_kernels, options_reference, varlen_reference
from rooftile.workbench.build import instances

NAMES = [k.name for k in banded_kernels.BACKWARD]
DENSE, PACKED = OPS["attention_options_backward"], OPS["attention_varlen_backward"]


def drawn(shapes, dtype):
    gen = torch.Generator().manual_seed(sum(shapes[0]) + sum(shapes[1]))
    return tuple(torch.randn(x, generator=gen).to(dtype) for x in shapes)


def sunk(h, dtype):
    """Sinks of a dtype, every second number of a tensor; of None nothing. The first head's takes nothing."""
    return dtype and torch.randn(2 * h, generator=torch.Generator().manual_seed(h)).to(dtype)[::2].index_fill(
        0, torch.tensor([0]), -torch.inf if h > 1 else 1.0
    )


def window(t, s, d, left, right, dtype=torch.bfloat16, b=1, h=1, g=0, cap=0.0, loud=1.0, masks=(), documents=0, sinks=None):
    """masks: how many there are, of batches and of heads; of `documents`, one behind another, queries see the keys of their own alone."""
    g = g or h
    q, k, v, dout = drawn(((b, t, h, d), (b, s, g, d), (b, s, g, d), (b, t, h, d)), dtype)
    q *= loud
    rules, mask = (d**-0.5, left, right, cap, 0.0), None
    if masks:
        mask = torch.rand(*masks, t, s, generator=torch.Generator().manual_seed(t + s)) < 0.6
        if documents:
            mask &= torch.arange(t)[:, None] * documents // t == torch.arange(s) * documents // s
        mask = mask.expand(b, h, t, s)
    sinks = sunk(h, sinks)
    out, lse = options_reference.attention_options(q, k, v, sinks, None, None, mask, None, *rules)
    return dout, torch.randn(lse.shape), q, k, v, sinks, None, None, mask, None, out, lse, *rules, False


def packed(lengths_q, lengths_k, d, left, right, dtype=torch.bfloat16, h=1, g=0, offsets=torch.int32, cap=0.0, sinks=None):
    g = g or h
    cu = [torch.tensor([0, *accumulate(x)], dtype=offsets) for x in (lengths_q, lengths_k)]
    q, k, v, dout = drawn(((sum(lengths_q), h, d), (sum(lengths_k), g, d), (sum(lengths_k), g, d), (sum(lengths_q), h, d)), dtype)
    longest, rules = (max(lengths_q), max(lengths_k)), (d**-0.5, left, right, cap, 0.0)
    sinks = sunk(h, sinks)
    out, lse = varlen_reference.attention_varlen(q, k, v, *cu, sinks, None, *longest, *rules)
    return dout, torch.randn(lse.shape), q, k, v, *cu, sinks, None, out, lse, *longest, *rules, False


def of(call):
    return PACKED if len(call) == len(PACKED.names) else DENSE


def computed(call, name="cuda.v5_hopper", level="checks", seed=None):
    with simulator.active(level, seed=seed):
        return of(call).kernel(name).run(*call)


def close(call, got):
    wanted = of(call).spec.reference(*(x.double() if isinstance(x, torch.Tensor) and x.dtype.itemsize == 2 else x for x in call))
    unit = torch.finfo(call[0].dtype).eps
    pairs = [(g, w) for g, w in zip(got, wanted) if w.numel()]
    return all(float((g.double() - w).abs().max()) <= 2 * unit * max(1.0, float(w.abs().max())) for g, w in pairs)


WINDOWS = [  # T, S, D, left, right: bounds around blocks of 128 and 64 queries, tiles of 128 keys
    (1, 1, 64, 0, 0), (129, 128, 128, 0, 0), (257, 257, 64, 63, 0), (257, 257, 128, 64, 0), (300, 300, 128, 127, 0), (300, 300, 64, 128, 0),
    (200, 330, 64, 65, 1), (330, 200, 128, 129, 63), (140, 270, 128, -1, 5), (270, 140, 64, 70, -1), (192, 256, 128, 1000, 1000),
    (130, 140, 64, -1, -1), (5, 400, 128, 3, 2), (400, 5, 64, 3, 2),
]  # fmt: skip


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("t, s, d, left, right", WINDOWS)
def test_windows_around_tiles(t, s, d, left, right, name):
    call = window(t, s, d, left, right, torch.float16 if t % 2 else torch.bfloat16)
    assert close(call, computed(call, name))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("d", [64, 128])
def test_windows_of_heads_that_share_keys(d, name):
    """A tile's walk ends before a head's last block and begins after its first: the next head's lies that much further."""
    call = window(400, 400, d, 100, 20, b=2, h=4, g=2)
    assert close(call, computed(call, name))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", ["checks", pytest.param("all", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("d, h, g", [(64, 5, 5), (128, 6, 3)])
def test_earlier_heads_are_rounded_and_later_ones_cleared_on_the_way(d, h, g, name, level, monkeypatch):
    monkeypatch.setattr(cuda_kernels, "dealt", lambda by_turns, group, tiles, *_: cuda_kernels.Dealt(1, 2, 1, min(2, tiles)))
    call = window(170, 290, d, 60, 10, h=h, g=g)  # the first tile has keys that nobody sees, and a share of the rounding
    assert close(call, computed(call, name, level=level, seed=2))


RAGGED = [  # lengths of q and of k
    ([1], [1]),
    ([127, 0, 1, 128, 129], [129, 0, 128, 1, 127]),
    ([0, 64, 0, 65], [0, 63, 130, 65]),  # keys without queries, the first and the last with nothing before or behind
    ([200, 70], [0, 300]),  # queries without keys
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("d, left, right", [(64, -1, 0), (128, -1, 0), (64, 30, 20), (128, -1, -1)])
@pytest.mark.parametrize("lengths", RAGGED)
def test_ragged_sequences(lengths, d, left, right, name):
    call = packed(*lengths, d, left, right, h=2, g=1, offsets=torch.int64 if left < 0 else torch.int32)
    assert close(call, computed(call, name))


@pytest.mark.parametrize("name", NAMES)
def test_a_half_without_keys_under_a_mask_of_heads_that_share_them(name):
    """Its first step is passed by, and was a head's last block of queries: the next heads' were counted on, and their bits read behind the mask's."""
    call = window(5, 129, 128, 64, 0, h=3, g=1, masks=(1, 1))
    assert close(call, computed(call, name))


def test_nothing_seen_is_exactly_nothing():
    dq, dk, dv, *_ = computed(window(200, 700, 128, 20, 0))  # the last query sees the last key
    assert not dk[:, :480].any() and not dv[:, :480].any() and dv[:, 480:].any(-1).all()
    dq, dk, dv, *_ = computed(window(300, 60, 64, 20, 10))
    assert not dq[:, :229].any() and dq[:, 231:].any(-1).all()
    dq, dk, dv, *_ = computed(packed([130, 0], [0, 200], 64, -1, 0))
    assert not dq.any() and not dk.any() and not dv.any()


def test_a_sequence_is_a_batch_of_one():
    """To the bit, where tiles add in turn."""
    lengths = ([70, 300, 130], [140, 300, 129])
    call = packed(*lengths, 128, -1, 0, h=2, g=1)
    made = computed(call, "cuda.v5_hopper_ordered")
    dout, dlse, q, k, v, cu_q, cu_k, _, _, out, lse, _, _, *rules = call
    for b in range(3):
        rows, keys = slice(*cu_q[b : b + 2].tolist()), slice(*cu_k[b : b + 2].tolist())
        own = (
            dout[None, rows],
            dlse[None, :, rows],
            q[None, rows],
            k[None, keys],
            v[None, keys],
            *[None] * 5,
            out[None, rows],
            lse[None, :, rows],
        )
        alone = computed((*own, *rules), "cuda.v5_hopper_ordered")
        assert all(torch.equal(x[part], y[0]) for x, y, part in zip(made, alone, (rows, keys, keys)))


def on_the_gpu(call, name):
    made = of(call).kernel(name).run(*(x.cuda() if isinstance(x, torch.Tensor) else x for x in call))
    return [x.cpu() for x in made]


@pytest.mark.parametrize("compute", [computed, pytest.param(on_the_gpu, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("poisoned", [1, 3])  # between others, and behind the last that there is
def test_what_a_neighbour_holds_is_read_by_nobody(poisoned, d, compute):
    """A weight of zero times NaN would be NaN: rows past a sequence's end must not arrive at all."""
    call = packed([70, 130, 100, 30], [140, 129, 60, 90], d, -1, 0, h=2, g=1)
    if poisoned == 3:
        call = tuple(x[:4] if n.startswith("cu_") else x for n, x in zip(PACKED.names, call))
    clean = compute(call, "cuda.v5_hopper_ordered")
    offsets = [0, 70, 200, 300, 330], [0, 140, 269, 329, 419]
    rows, keys = (slice(*x[poisoned : poisoned + 2]) for x in offsets)
    for name, x in zip(PACKED.names, call):
        if name in ("dout", "out", "q"):
            x[rows] = torch.nan
        elif name in ("k", "v"):
            x[keys] = torch.nan
        elif name in ("lse", "dlse"):
            x[:, rows] = torch.nan
    made = compute(call, "cuda.v5_hopper_ordered")
    for b in range(3):
        if b != poisoned:
            parts = (slice(*x[b : b + 2]) for x in (offsets[0], offsets[1], offsets[1]))
            assert all(torch.equal(x[part], y[part]) and x[part].isfinite().all() for x, y, part in zip(made, clean, parts))


CAPPED = {  # scores within the cap and far beyond it, causal, a window, sequences of their own, heads that share keys, keys past the end
    "causal": lambda: window(200, 200, 128, -1, 0, b=2, h=2, g=1, cap=50.0),
    "beyond": lambda: window(130, 150, 128, 100, 20, torch.float16, cap=1.5, loud=30.0),
    "all": lambda: window(70, 40, 128, -1, -1, cap=3.0, loud=4.0),
    "packed": lambda: packed([130, 0, 250], [200, 100, 270], 128, -1, 0, h=4, g=2, cap=2.0),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", ["checks", pytest.param("all", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("problem", CAPPED)
def test_capped_scores(problem, name, level):
    call = CAPPED[problem]()
    assert close(call, computed(call, name, level=level))


UNCAPPED = {  # what is said of a cap, and forgotten or wrong
    "sloped(s, slopes);": ";",
    "fmaf(-a, a, 1.0f)": "fmaf(-a, a, 1.1f)",
    "fmaf(b, cap_log2, -of.y)": "fmaf(a, cap_log2, -of.y)",
    "pack_pair(__half(), fmaf(-a, a, 1.0f), fmaf(-b, b, 1.0f))": "pack_pair(__half(), fmaf(-b, b, 1.0f), fmaf(-a, a, 1.0f))",
}


@pytest.mark.parametrize("stands", some(UNCAPPED, "sloped(s, slopes);"))
def test_a_cap_that_is_forgotten_is_seen(stands, tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_kernels, "V5", rewritten(cuda_kernels.V5, stands, UNCAPPED[stands], tmp_path))
    call = window(200, 200, 128, -1, 0, cap=2.0, loud=2.0)
    assert not close(call, computed(call, "cuda.v5_hopper_ordered"))


MASKED = {  # a mask of each head and of each batch, or one for all; blocks that it hides; rows of whole 16 bytes and not; with a window and a cap
    "heads": lambda: window(200, 300, 128, -1, -1, h=2, masks=(1, 2)),
    "batches": lambda: window(260, 150, 64, -1, 0, torch.float16, b=2, h=2, masks=(2, 1)),
    "shared keys": lambda: window(150, 150, 128, 100, 20, b=2, h=4, g=2, masks=(2, 4)),
    "one for all": lambda: window(330, 288, 64, 100, 30, b=2, h=4, g=2, masks=(1, 1)),
    "documents": lambda: window(700, 640, 128, -1, 0, h=2, g=1, masks=(1, 1), documents=3),
    "documents of 64": lambda: window(640, 700, 64, -1, -1, h=2, masks=(1, 2), documents=4),
    "capped": lambda: window(200, 260, 128, 60, 10, h=4, g=2, masks=(1, 1), cap=4.0),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", ["checks", pytest.param("all", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("problem", MASKED)
def test_masks(problem, name, level):
    call = MASKED[problem]()
    if problem == "shared keys" and name == "cuda.v5_hopper_ordered":
        assert "4 heads share 2 of keys and have masks of their own" in DENSE.kernel(name).refuse(dict(zip(DENSE.names, call)))
        return
    assert close(call, computed(call, name, level=level))


@pytest.mark.parametrize("d, m", [(64, 128), (128, 64)])
def test_a_walk_begins_and_ends_where_a_mask_lets_queries_see_its_keys(d, m):
    mask = torch.zeros(1, 2, 700, 300, dtype=torch.bool)
    mask[0, 0, 130, 5], mask[0, 0, 500, 127], mask[0, 1, 699, 299], mask[0, 1, 0, 128] = [True] * 4
    with simulator.active("checks"):
        of_heads, of_one = (
            cuda_kernels.packed_bits(x, m, *reach) for x, reach in ((mask, (1000, 1000)), (mask[:, :1].expand(2, 4, -1, -1), (1000, 100)))
        )
    blocks, tile = 128 // m, [[1, 4], [5, 6], [5, 6]]  # of 128 queries; of a tile that nobody sees one that does not
    wanted = [[a * blocks, b * blocks] for a, b in tile[:1]]
    assert of_heads.spans[0].tolist() == wanted[0] and (of_heads.of_batch, of_heads.of_head) == (0, 1)
    assert (of_heads.spans[:, 1] > of_heads.spans[:, 0]).all() and of_heads.spans[1].tolist() == [699 // m, 699 // m + 1]
    assert of_heads.spans[4].tolist() == [0, blocks] and of_heads.spans[5].tolist() == [640 // m, -(-700 // m)]
    assert len(of_one.spans) == 3 and (of_one.of_batch, of_one.of_head) == (0, 0)
    assert of_one.spans[0].tolist() == [max(400 - 100, 128) // m, blocks * 4]  # query 300 is the first whose window has key 0


EIGHTY = {  # queries before the first and past the last block, edges in every block, sequences that end within one, heads that share keys
    "window": lambda: window(330, 420, 128, 100, 20, h=2, g=1),
    "wide": lambda: window(600, 620, 128, 300, 20),
    "packed": lambda: packed([130, 0, 250], [200, 100, 270], 128, -1, 0, torch.float16, h=4, g=2),
    "full": lambda: packed([160, 1, 79, 81], [129, 0, 128, 300], 128, -1, -1, h=2, g=1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", ["checks", pytest.param("all", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("problem", EIGHTY)
def test_long_walks_take_80_queries(problem, level, monkeypatch):
    monkeypatch.setattr(banded_kernels, "queries", lambda d, ordered, *_: 80 if d == 128 and not ordered else 8192 // d)
    call = EIGHTY[problem]()
    assert close(call, computed(call, level=level))


def test_which_walks_are_long():
    of = banded_kernels.queries
    assert [of(128, False, t, -1, 0) for t in (4095, 4096)] == [of(128, False, 9999, left, 0) for left in (3967, 3968)] == [64, 80]
    assert [of(128, False, t, -1, -1) for t in (512, 1000, 2048)] == [64, 80, 80]
    assert of(128, True, 9999, -1, 0) == 64 and of(64, False, 9999, -1, 0) == 128


SEVERAL = {  # causal, of heads that share keys: lengths that differ, no queries, keys behind those that are seen; heads a walk
    "packed": (1, lambda d: packed([130, 0, 250], [200, 100, 270], d, -1, 0, h=4, g=2)),
    "two of four": (2, lambda d: packed([130, 70], [100, 170], d, -1, 0, torch.float16, h=4, g=1)),
    "all at once": (2, lambda d: packed([130, 0, 250], [200, 100, 270], d, -1, 0, h=2, g=1)),
    "one length": (1, lambda d: window(200, 330, d, -1, 5, b=2, h=4, g=2)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", ["checks", pytest.param("all", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("problem", SEVERAL)
def test_several_walks_over_a_tile(problem, d, level, monkeypatch):
    heads, draw = SEVERAL[problem]
    for module in (banded_kernels, cuda_kernels):
        monkeypatch.setattr(module, "walked", lambda most, group, tiles: min(heads, group))
    call = draw(d)
    assert close(call, computed(call, level=level))


def test_in_a_window_and_in_turn_a_walk_goes_through_all_heads(monkeypatch):
    asked = []
    monkeypatch.setattr(cuda_kernels, "walked", lambda most, group, tiles: asked.append(most) or group)
    for left, right, name in ((20, 0, NAMES[0]), (-1, -1, NAMES[0]), (20, -1, NAMES[0]), (-1, 0, "cuda.v5_hopper_ordered")):
        computed(window(30, 30, 64, left, right, h=2, g=1), name)
    assert not asked
    computed(window(30, 30, 64, -1, 0, h=2, g=1))
    assert asked == [4]


@pytest.mark.parametrize("heads", [1, 2])
def test_keys_past_the_longest_there_were_said_to_be_are_nan(heads):
    call = list(packed([100, 300], [150, 200], 64, -1, 0, h=heads, g=1))
    call[PACKED.names.index("max_seqlen_k")] = 160
    _, dk, dv, *_ = computed(tuple(call))
    for x in (dk, dv):
        assert x[:310].isfinite().all() and x[310:].isnan().all()


@pytest.mark.parametrize("offsets", [[0, 300, 100, 350], [-5, 90, 200, 1000], [2**40, 2, 1, 350]])
def test_offsets_that_are_none_stay_within_the_tensors(offsets):
    call = list(packed([100, 50, 200], [100, 50, 200], 64, -1, 0, offsets=torch.int64))
    for n in ("cu_seqlens_q", "cu_seqlens_k"):
        call[PACKED.names.index(n)] = torch.tensor(offsets)
    computed(tuple(call))  # the simulator would say what lies outside


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("call", [window(400, 400, 128, 150, 0), packed([260, 130], [300, 200], 128, -1, 0)], ids=["window", "packed"])
def test_in_turn_whatever_comes_first(call, seed):
    first, again = (computed(call, "cuda.v5_hopper_ordered", "values", s) for s in (None, seed))
    assert all(map(torch.equal, first, again))


SINKS = {
    "in a window, of which some queries see nothing": window(300, 250, 64, 100, 3, h=4, g=2, sinks=torch.float32),
    "of two batches, causal": window(260, 270, 128, -1, 0, b=2, h=2, sinks=torch.bfloat16),
    "and a mask and a cap": window(140, 200, 128, -1, 0, torch.float16, h=2, masks=(1, 1), cap=4.0, sinks=torch.float16),
    "of queries that see nothing at all": window(200, 30, 64, 5, 0, h=3, sinks=torch.float32),
    "of packed sequences, some empty": packed([70, 0, 300], [90, 5, 200], 64, -1, 0, h=4, g=2, sinks=torch.float32),
    "of packed sequences in a window": packed([130, 260], [130, 260], 128, 60, 0, h=2, sinks=torch.bfloat16),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", SINKS)
def test_sinks(what, name):
    call = SINKS[what]
    assert close(call, computed(call, name))


@pytest.mark.parametrize("fault", [("- gDlse[at]", ""), ("i_t < T_ && i_d == 0", "i_d == 0 && i_t < T_ - 1"), ("exp_fast(sink - lse)", "exp_fast(sink)"),
                                   ("sum -= ", "sum += "), ("if (lse != minus_inf()) ", "")])  # fmt: skip
def test_a_sinks_gradient_that_is_wrong_is_seen(fault, tmp_path, monkeypatch):
    monkeypatch.setattr(banded_kernels, "SINKS", rewritten(banded_kernels.SINKS, *fault, tmp_path))
    right = [close(call, computed(call)) for call in SINKS.values()]
    assert not all(right)


REFUSED = {
    "a window, a mask, a soft cap and sinks alone, and the call has bias, dropout": {"bias": torch.zeros(1), "seed": torch.zeros(2)},
    "D=64 and a soft cap of 3: it caps scores of D=128": {"softcap": 3.0},
    "a soft cap of 1000: it knows scores of caps up to 256": {"q": torch.zeros(1, 4, 2, 128), "softcap": 1000.0},
    "the call is deterministic, and here dq is summed by atomics": {"deterministic": True},
    "the call has dropout": {"seed": torch.tensor(3), "p": 0.1},
    "D=32, it is written for 64 and 128": {"q": torch.zeros(1, 4, 2, 32)},
    "dout with strides .* is not made of rows aligned": {"dout": torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16).expand(1, 4, 2, 64)},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_it_refuses(said):
    call = dict(zip(DENSE.names, window(4, 4, 64, 1, 0, h=2)))
    kernel = DENSE.kernel("cuda.v5_hopper")
    with simulator.active("checks"):
        assert kernel.refuse(call) is None
        assert re.search(said, kernel.refuse(call | REFUSED[said]) or "")


def test_what_it_refuses_of_packed_sequences():
    call = dict(zip(PACKED.names, packed([4], [4], 64, -1, 0)))
    kernel = PACKED.kernel("cuda.v5_hopper")
    with simulator.active("checks"):
        assert kernel.refuse(call) is None
        assert "at 2 bytes past" in kernel.refuse(call | {"k": torch.zeros(4 * 64 + 1, dtype=torch.bfloat16)[1:].view(4, 1, 64)})
        assert "the call has dropout" in kernel.refuse(call | {"seed": torch.tensor(3)})


def test_who_asks_for_the_same_bits_has_tiles_add_in_turn(monkeypatch):
    q, k, v = (torch.zeros(1, 2048, 16, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    cu, chosen = torch.tensor([0, 2048]), []

    def launch(op, *args):
        call = dict(zip(op.names, args))
        chosen.append(op.choose(call).kernel.name)
        return op.spec.empty_returns(call)

    for op in (DENSE, PACKED, OPS["attention_options"], OPS["attention_varlen"]):
        monkeypatch.setattr(op, "launch", partial(launch, op))
    with simulator.active("checks"):
        for asked in (False, True):
            outs = (
                attention(q, k, v, window=(1023, 0), deterministic=asked),
                attention_varlen(q[0], k[0], v[0], cu, cu, 2048, 2048, causal=True, deterministic=asked),
            )
            for out in outs:
                torch.autograd.grad(out, q, torch.ones_like(out))
    assert [n for n in chosen if n != "reference"] == ["cuda.v5_hopper"] * 2 + ["cuda.v5_hopper_ordered"] * 2


@pytest.mark.thorough
def test_no_spills_and_no_product_waits_for_another():
    found = {w.instance: w for op in (DENSE, PACKED) for n in NAMES for w in instances(op, op.kernel(n), every=True)}
    wanted = {f"windowed<__nv_bfloat16, 64, {o}, 128, false, false, {bits}>" for o in ("true", "false") for bits in ("true", "false")}
    wanted |= {f"ragged<__nv_bfloat16, 64, {o}, 128, false, false>" for o in ("true", "false")}
    assert {f"attention_backward_{x}" for x in wanted} < set(found)
    for w in found.values():
        made = compiler.compiled(w.source, w.instance, "sm_90a")
        assert (made.spill_bytes, made.loss) == (0, ""), w.instance
        assert made.registers <= 168 and made.shared_bytes + w.shared <= 227 * 1024, w.instance


# ---- faults ------------------------------------------------------------------------------------------------------------------


def far():
    """Scores near -200: keys past a sequence's end score 0, and 2^(0 - lse) is inf."""
    call = list(packed([130, 0, 250], [200, 100, 270], 128, -1, -1))
    of = {n: call[PACKED.names.index(n)] for n in ("q", "k")}
    of["q"].abs_().add_(4.0), of["k"].abs_().add_(4.0).neg_()
    rules = call[PACKED.names.index("max_seqlen_q") : PACKED.names.index("deterministic")]
    out, lse = varlen_reference.attention_varlen(of["q"], of["k"], call[PACKED.names.index("v")], *call[5:7], None, None, *rules)
    return tuple(out if n == "out" else lse if n == "lse" else x for n, x in zip(PACKED.names, call))


def far_window():
    """The same of one sequence that has a window, open on both sides."""
    call = dict(zip(PACKED.names, far()))
    q, k, v, dout = (call[n][:130][None] for n in ("q", "k", "v", "dout"))
    rules = (call["scale"], -1, -1, 0.0, 0.0)
    out, lse = options_reference.attention_options(q, k, v, None, None, None, None, None, *rules)
    return dout, torch.randn(lse.shape), q, k, v, None, None, None, None, None, out, lse, *rules, False


PROBLEMS = {
    "window": lambda: window(400, 420, 128, 100, 20, h=2, g=1),
    "wide": lambda: window(600, 620, 128, 300, 20),  # blocks that see a whole tile
    "passed": lambda: window(400, 400, 128, 80, 20, h=2, g=1),  # the first half by the last block, or not quite
    "passed at once": lambda: window(64, 180, 128, 20, 0),  # and it is the only one
    "banded": lambda: packed([400], [420], 128, 100, 20, h=2, g=1),
    "wide banded": lambda: packed([600], [620], 128, 300, 20),
    "packed": lambda: packed([130, 0, 250], [200, 100, 270], 128, -1, 0, h=2, g=1),
    "full": lambda: packed([130, 0, 250], [200, 100, 270], 128, -1, -1),
    "several": lambda: packed([130, 0, 250], [200, 100, 270], 128, -1, 0, h=4, g=2),
    "nothing": lambda: window(200, 700, 128, 20, 0),
    "long": lambda: packed([1, 300], [1, 500], 128, 40, 0),
    "far": far,
    "far window": far_window,
    **{f"masked, {n}": draw for n, draw in MASKED.items()},
}
WRONG = {  # what stands in the kernels, what comes in its place, and in which problem it is seen
    "first = max(0, low - int(anew(right))) / X::BLOCK_M;": ("first = max(0, low + 64 - int(anew(right))) / X::BLOCK_M;", "window"),
    "min((i_tile + 1) * BLOCK_N, S) + T - S + anew(left);": ("min((i_tile + 1) * BLOCK_N, S) + T - S + anew(left) - 64;", "window"),
    "first = max(0, low) / M,": ("first = max(0, low + 64) / M,", "banded"),
    "high = min(key + BLOCK_N, S) - 1 + T - S + left;": ("high = min(key + BLOCK_N, S) - 1 + T - S + left - 64;", "banded"),
    "low = key < keys ? from : NEVER, high": ("low = from, high", "far"),
    "key + 8 < keys ? from + 8 : NEVER;": ("from + 8;", "far"),
    "(j / 2 % 2 ? high : low)) > more": ("(j / 2 % 2 ? high : low)) > more + 1", "window"),
    "anew(left) + behind);": ("anew(left) + behind - 1);", "window"),
    "left + right, rows()": ("left + right - 1, rows()", "banded"),
    "masked = rows() < BLOCK_N ? NEVER : ": ("masked = ", "far"),
    "masked = (i_tile + 1) * BLOCK_N > S ? NEVER : ceil_div(max(0, low -": ("masked = ceil_div(max(0, low -", "far window"),
    "ceil_div(max(0, low + BLOCK_N - 1), M)": ("max(0, low + BLOCK_N - 1) / M", "wide banded"),
    "ceil_div(max(0, low - int(anew(right)) + BLOCK_N - 1), X::BLOCK_M)": ("max(0, low - int(anew(right)) + BLOCK_N - 1) / X::BLOCK_M", "wide"),
    "max(0, low + left + right + 1) / M": ("ceil_div(max(0, low + left + right + 1), M)", "wide banded"),
    "max(0, low + int(anew(left)) + 1) / X::BLOCK_M": ("ceil_div(max(0, low + int(anew(left)) + 1), X::BLOCK_M)", "wide"),
    "padded - (blocks - first),": ("padded - blocks,", "banded"),
    "x.first + int(anew(blocks)) - end : x.first": ("int(anew(blocks)) - end : x.first", "window"),
    "+ 63 + int(anew(T)": ("+ 31 + int(anew(T)", "passed"),
    "sR.end - (passed && x.count > 1)": ("sR.end - passed", "passed at once"),
    "      last(X::DS + (step - 1) % DS_STAGES * DS_BYTES);\n": ("", "passed"),
    "max(first + 1, ceil_div(": ("max(first, ceil_div(", "nothing"),
    "return WINDOW ? last : blocks;": ("return blocks;", "window"),
    "+ (WINDOW ? right : 0)) / BLOCK_N": ("+ (WINDOW ? right + BLOCK_N : 0)) / BLOCK_N", "window"),
    "- (WINDOW ? right : 0) - i": ("- (WINDOW ? right - 80 : 0) - i", "window"),
    "if (row < w.sBand->keys) store_global": ("store_global", "packed"),
    "if (w.count == 0) {": ("if (w.count < 0) {", "packed"),
    "i_first = i_bh * padded + x.i_block + first;": ("i_first = i_bh * padded + first;", "packed"),
    "x.i_block = x.at_q / M + b;": ("x.i_block = x.at_q / M;", "packed"),
    "length == mine.T && i < b": ("length == mine.T && i <= b", "packed"),
    "if (i_d == 0 && i_t < x.T) gRow[M + i_row] -= gDlse[x.row + i_t];": ("", "packed"),
    "if (OF_LSE && i_d == 0 && i_t < T_) gRows": ("if (OF_LSE && i_d == 0 && i_t < T_ - 64) gRows", "window"),
    "gLse + x.row, 0, i_t, i_d, x.T, 0);": ("gLse + x.row, 0, i_t, i_d, T_, 0);", "packed"),
    "stride_t, x.T - i_t, scale);": ("stride_t, x.T - i_t + 1, scale);", "long"),
    "Slice::of(at_q, T), Slice": ("Slice::of(at_q + 1, T), Slice", "packed"),
    "Slice::of(at_k, S)};": ("Slice::of(at_k + 1, S)};", "packed"),
    "min(sBand->after, ": ("min(sBand->after + 1, ", "packed"),
    "(x.i_slot + i_tile) * G": ("i_tile * G", "several"),
    "i_tile = i_slot - x.i_slot, at_k": ("i_tile = i_slot, at_k", "several"),
    "to[at_k + row]": ("to[row]", "several"),
    "i_g = i_walk / walks, i_h": ("i_g = i_walk % G, i_h", "several"),
    "{words.x >> from / 4, words.y >> from / 4}": ("{words.y >> from / 4, words.x >> from / 4}", "masked, heads"),
    "words.y >> from / 4}": ("words.y}", "masked, heads"),
    "+ x.i_h * int(anew(masks_h))": ("", "masked, heads"),
    "x.i_b * int(anew(masks_b))": ("x.i_b * 0", "masked, batches"),
    "of_masks(x) * (2ll * ceil_div": ("of_masks(x) * (1ll * ceil_div", "masked, one for all"),
    "at = half * ceil_div(anew(T), 128u)": ("at = 0 * ceil_div(anew(T), 128u)", "masked, heads"),
    "+ query / 128;": (";", "masked, heads"),
    "__reduce_min_sync(ALL_LANES, first) * 128": ("__reduce_min_sync(ALL_LANES, first) * 128 + 128", "masked, documents"),
    "__reduce_max_sync(ALL_LANES, end) * 128": ("__reduce_max_sync(ALL_LANES, end) * 128 - 128", "masked, documents"),
    "if (gAny[(long long)i * across + j])": ("if (gAny[(long long)i + j])", "masked, documents"),
    "x.blocks = span.y, x.count = (span.y - span.x) * group;": ("x.blocks = span.y, x.count = span.y - span.x;", "masked, one for all"),
    "x = i_s + key < S ? ": ("x = true ? ", "masked, one for all"),
    "min(16, S - i_s - key)": ("16", "masked, heads"),
    "if (i_t + query < T_) {": ("{", "masked, heads"),
    "four_bits(x.y) << 4": ("four_bits(x.y) << 8", "masked, one for all"),
    "(bits >> 8 & 1) << j": ("(bits >> 7 & 1) << j", "masked, heads"),
    "gBits[((at * 2 + half) * across + i_block)": ("gBits[((at * 2 + half) * across)", "masked, heads"),
}  # fmt: skip


def faulty(problem, monkeypatch, name="cuda.v5_hopper_ordered", level="checks", stands="", instead="", into=None):
    """With one text for another, in whichever file has it."""
    if stands:
        (which,) = (n for n in ("V5", "BITS") if stands in getattr(cuda_kernels, n).text)
        source = rewritten(getattr(cuda_kernels, which), stands, instead, into)
        for module in (banded_kernels, cuda_kernels):  # of which one has what both launch
            monkeypatch.setattr(module, which, source, raising=module is cuda_kernels)
    call = PROBLEMS[problem]()
    with contextlib.suppress(simulator.Found):
        return not close(call, computed(call, name, level))
    return True


@pytest.mark.sampled(5)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_whole_it_has_no_fault(problem, monkeypatch):
    assert not faulty(problem, monkeypatch, "cuda.v5_hopper" if "masked" in problem else "cuda.v5_hopper_ordered")


@pytest.mark.thorough
@pytest.mark.parametrize("stands", WRONG)
def test_a_wrong_kernel_is_seen(stands, tmp_path, monkeypatch):
    instead, problem = WRONG[stands]
    name = "cuda.v5_hopper" if problem == "several" or "masked" in problem else "cuda.v5_hopper_ordered"
    assert faulty(problem, monkeypatch, name, stands=stands, instead=instead, into=tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "problem, name", [(p, n) for p in PROBLEMS for n in NAMES if (p, n) != ("masked, shared keys", NAMES[1])]
)  # refused
def test_races(problem, name, monkeypatch):
    assert not faulty(problem, monkeypatch, name, "all")


@pytest.mark.thorough
@pytest.mark.parametrize("stands, problem", [
    ("    gSpan[b] = x;\n  }\n  __syncthreads();", "packed"), ("    sBits[query][i % 8] = bits;\n  }\n  __syncthreads();", "masked, one for all"),
])  # fmt: skip
def test_what_others_wrote_is_there_before_it_is_read(stands, problem, tmp_path, monkeypatch):
    without = stands.replace("__syncthreads();", "")
    assert faulty(problem, monkeypatch, level="all", stands=stands, instead=without, into=tmp_path)
