"""v5, the backward for heads of 64 and 128, in the simulator: its own walks and shares, and that no line that orders anything can be taken away."""

import contextlib
from itertools import product

import pytest
import torch

from attention_gradients import close, problem
from faulty_kernels import orders, rewritten, some, without
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.ops.attention import cuda_kernels, reference

OP = OPS["attention_backward"]
KERNELS = {k.name: k for k in cuda_kernels.BACKWARD}


def computed(call, name="cuda.v5_hopper", level="checks"):
    with simulator.active(level):
        return KERNELS[name].run(*call)


def walking(monkeypatch, heads):
    """So many of the heads that share keys in a walk: of so few tiles each would have its own."""
    monkeypatch.setattr(cuda_kernels, "walked", lambda most, group, tiles: min(heads, group))


LONG = [  # T, S, heads, heads a walk
    (80, 129, {}, 1), (235, 300, {}, 1), (315, 260, {"b": 2, "h": 2}, 1), (230, 300, {"h": 3, "g": 1}, 3), (230, 300, {"h": 3, "g": 1}, 1),
]  # fmt: skip


@pytest.mark.parametrize("t, s, heads, walk", LONG)
def test_long_causal_ones_take_80_queries(t, s, heads, walk, monkeypatch):
    monkeypatch.setattr(cuda_kernels, "LONG", 64)
    walking(monkeypatch, walk)
    assert cuda_kernels.queries(128, True, False, t) == 80
    call = problem(t, s, 128, True, **heads)
    assert close(call, computed(call))


# ---- the half of a tile that a causal walk's first queries do not see ----------------------------------------------------------

UNSEEN = [  # T, S, D, heads: whole steps, a tile that has one step or half its keys, where queries begin within a block, before and behind the keys
    (320, 320, 128, {}), (298, 298, 128, {}), (170, 170, 128, {}), (300, 260, 128, {}), (364, 260, 128, {}), (260, 300, 128, {}), (200, 390, 128, {}), (40, 150, 128, {"h": 2, "g": 1}),
    (330, 330, 128, {"h": 4, "g": 2}),
    (400, 400, 64, {}), (314, 314, 64, {}), (128, 128, 64, {}), (420, 390, 64, {}), (420, 336, 64, {}), (300, 390, 64, {}), (390, 390, 64, {"h": 4, "g": 2}),
]  # fmt: skip


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("t, s, d, heads", UNSEEN)
def test_a_half_that_nobody_sees_yet(t, s, d, heads, name, monkeypatch):
    walking(monkeypatch, 2)
    call = problem(t, s, d, True, torch.float16 if t % 4 else torch.bfloat16, **heads)
    assert close(call, computed(call, name))


TOO_MUCH = {  # as it stands and wrong; T and S where it shows
    "w.unseen(sR, half, i) >= (D == 64 ? 64 : M)": ("w.unseen(sR, half, i) >= 32", (300, 260, 128)),  # 40 of 64 are not seen
    "half * 64 + T - S - (WINDOW": ("half * 64 + 64 + T - S - (WINDOW", (400, 400, 64)),  # a step too long
    "  no_columns<X::BLOCK_M>(sDs);\n": ("", (320, 320, 128)),
    "producer_commit(sR.ds, nth_stage(step));": (";", (320, 320, 128)),
    "&& step + 1 != sR.end": ("", (170, 170, 128)),  # the only step there is
    "if constexpr (FROM > 0) no_columns<FROM>(sDs);": ("", (400, 400, 64)),
    "store_columns(sDs + FROM * LINE, ds16);": ("store_columns(sDs, ds16);", (400, 400, 64)),
    "QUERIES + FROM * LINE;": ("QUERIES;", (400, 400, 64)),
    "sX + X::LSE) + at.index * M + FROM": ("sX + X::LSE) + at.index * M", (400, 400, 64)),
    "sX + X::DELTA) + at.index * M + FROM": ("sX + X::DELTA) + at.index * M", (400, 400, 64)),
    "w.mask(s, sR, half, i, FROM)": ("w.mask(s, sR, half, i, 0)", (400, 400, 64)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("stands", TOO_MUCH)
def test_who_passes_by_what_is_wanted_is_seen(stands, tmp_path, monkeypatch):
    instead, (t, s, d) = TOO_MUCH[stands]
    monkeypatch.setattr(cuda_kernels, "V5", rewritten(cuda_kernels.V5, stands, instead, tmp_path))
    call = problem(t, s, d, True)
    with contextlib.suppress(simulator.Found):
        assert not close(call, computed(call, "cuda.v5_hopper_ordered", level="all"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", KERNELS)
def test_long_causal_ones_on_a_gpu(name):
    q, k, v, dout = (torch.randn(1, 8200, heads, 128, device="cuda").bfloat16() for heads in (4, 2, 2, 4))
    call = (dout, q, k, v, *reference.attention(q, k, v, True, 0.1), True, 0.1)
    assert close(call, KERNELS[name].run(*call))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("d", [64, 128])
def test_more_blocks_than_stages_and_several_heads(d):
    call = problem(400, 300, d, False, b=2, h=3)
    assert close(call, computed(call))


SEVERAL = [  # T, S, D, B, heads, of keys, heads a walk: one and two of four, keys cut short, keys that no query sees, queries that see none
    (140, 150, 128, 2, 4, 1, 1), (140, 150, 128, 1, 8, 2, 2), (260, 390, 64, 2, 4, 2, 1), (130, 300, 128, 1, 2, 1, 1), (300, 140, 64, 1, 6, 2, 1),
]  # fmt: skip


def several(t, s, d, b, h, g, heads, level, monkeypatch):
    """Their sums come to dk and dv as these lie."""
    walking(monkeypatch, heads)
    call = problem(t, s, d, True, torch.float16 if t % 4 else torch.bfloat16, b=b, h=h, g=g)
    q, k, v = call[1:4]
    into = (torch.empty_like(q), *(x.new_full((b, g, s, 3 * d), torch.nan).transpose(1, 2)[..., d : 2 * d] for x in (k, v)))
    with simulator.active(level):
        made = KERNELS["cuda.v5_hopper"].run(*call, into=into)
    assert close(call, made) and all(a is x for a, x in zip(made, into))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("problem", SEVERAL)
def test_several_walks_over_a_tile(problem, monkeypatch):
    several(*problem, "checks", monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize("problem", SEVERAL)
def test_several_walks_race_with_nobody(problem, monkeypatch):
    several(*problem, "all", monkeypatch)


SUMS = {  # which walk's what is, as it stands and wrong
    "i_walk % of_batch / anew(walks)": "i_walk % of_batch % anew(G)",
    "anew(walks), i_h = i_walk % of_batch * group": "anew(walks), i_h = i_g * group",
    "w.sums(keys) * 2ll + half": "w.sums(keys) * 2ll",
    "(x.i_b * tiles + x.i_tile) * G + x.i_g": "x.i_tile * G + x.i_g",
    "row = i_s + r * 8": "row = i_s + r",
    "part[i / 2][r * 2 + i % 2]": "part[i / 2][i % 2 * 2 + r]",
    "(of_v ? 1.0f : scale)": "(of_v ? scale : 1.0f)",
    "if (row < S) store_global(to": "if (row < S - 1) store_global(to",
}


@pytest.mark.parametrize("stands", some(SUMS, "i_walk % of_batch / anew(walks)"))
def test_a_walk_whose_sums_go_astray_is_seen(stands, tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_kernels, "V5", rewritten(cuda_kernels.V5, stands, SUMS[stands], tmp_path))
    walking(monkeypatch, 1)
    call = problem(140, 140, 64, True, b=2, h=4, g=2)
    with contextlib.suppress(simulator.Found):
        got = computed(call)
        assert not close(call, [x.nan_to_num(nan=9.0) for x in got])


def test_how_many_heads_a_walk_has():
    """A divisor of the heads that share keys, fewer where there are few tiles."""
    walked = cuda_kernels.walked
    assert [walked(most, 8, 4096) for most in (2, 4, 8)] == [2, 4, 8]
    assert [walked(4, group, 4096) for group in (1, 2, 3, 5, 6, 7, 16)] == [1, 2, 3, 1, 3, 1, 4]
    assert [walked(4, 4, tiles) for tiles in (1, 256, 512, 1024)] == [1, 1, 2, 4]


WHOLE = [  # the first has several walks
    (True, "cuda.v5_hopper", False), (True, "cuda.v5_hopper", True), (True, "cuda.v5_hopper_ordered", False), (False, "cuda.v5_hopper", False),
]  # fmt: skip


@pytest.mark.parametrize("causal, name, turned", WHOLE)
def test_who_goes_through_all_heads_at_once(causal, name, turned, monkeypatch):
    """Where no mask cuts keys all tiles begin together; sums come in turn from one walk a tile; what is turned back is turned where it is whole."""
    asked = []
    monkeypatch.setattr(cuda_kernels, "walked", lambda most, group, tiles: asked.append(most) or group)
    call = problem(30, 30, 64, causal, h=2, g=1)
    with simulator.active("checks"):
        KERNELS[name].run(*call, **({"turned": (torch.randn(30, 32), torch.randn(30, 32))} if turned else {}))
    assert asked == ([4] if (causal, name, turned) == WHOLE[0] else [])


@pytest.mark.thorough
def test_races_between_heads_that_share_keys():
    call = problem(260, 290, 128, True, h=3, g=1)
    assert close(call, computed(call, "cuda.v5_hopper_ordered", level="all"))


WALKS = {  # where the next head begins, as it stands and forgotten
    "i = x.first, ++x.i_h, gRow": "i = x.first, gRow",
    "++x.i_h, gRow += w.between(x, x.blocks) * 2 * M": "++x.i_h",
    "i = w.first, i_half += w.between(w, blocks) * 2": "i = w.first",
    "if (++i == blocks) i = first;": "++i;",
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("stands", WALKS)
def test_a_walk_that_misses_the_next_head_is_seen(stands, tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_kernels, "V5", rewritten(cuda_kernels.V5, stands, WALKS[stands], tmp_path))
    walking(monkeypatch, 2)
    call = problem(250, 250, 128, True, h=2, g=1)
    with contextlib.suppress(simulator.Found):
        assert not close(call, computed(call))


def test_slices_of_one_tensor():
    """Read as they lie."""
    dout, q, k, v, *rest = problem(140, 140, 64, True, b=2, h=2)
    call = (dout, *torch.stack([q, k, v], 2).unbind(2), *rest)
    assert all(map(torch.equal, computed(call, "cuda.v5_hopper_ordered"), computed((dout, q, k, v, *rest), "cuda.v5_hopper_ordered")))


# ---- dq of earlier heads, rounded by those that come after -------------------------------------------------------------------


def rounds(monkeypatch, back, together=1, ahead=None, clearing=None):
    """Heads here are too few to have any so long before them."""
    monkeypatch.setattr(
        cuda_kernels,
        "dealt",
        lambda by_turns, group, tiles, *_: cuda_kernels.Dealt(together, back, ahead or back, min(tiles, clearing or tiles)),
    )


@pytest.mark.parametrize("by_turns, near", [(True, False), (True, True), (False, False)])
def test_nobody_waits_for_who_comes_later(by_turns, near):
    """A head's tiles have all been dealt out before the first block that rounds its dq or adds to what they clear, and long before."""
    for s, group, of_queries in product((1, 300, 640, 1024, 5000, 9000, 16384, 40000), (1, 2, 8), (16, 8, 5)):  # 8 in a window
        tiles = -(-s // 128)
        together, back, ahead, clearing = cuda_kernels.dealt(by_turns, group, tiles, of_queries, near)
        heads = 2 * back + together + 1
        dealt_out = [
            h for at in range(0, heads, together) for _ in range(tiles) for h in range(at, min(at + together, heads))
        ]  # as `deal` does
        first, last = {}, {}
        for i, head in enumerate(dealt_out):
            first.setdefault(head, i)
            last[head] = i
        close = near and together * tiles < cuda_kernels.LEAD
        assert 1 <= clearing <= tiles and (clearing < tiles) == (close and tiles > 1)
        for n, least in ((back, cuda_kernels.WAVE if close else cuda_kernels.LEAD), (ahead, cuda_kernels.WAVE)):
            for head in range(n, heads):
                assert last[head - n] < first[head]
                assert first[head] - first[head - n] >= (least if together > 1 else least + tiles)
        assert not close or first[back] - first[0] >= cuda_kernels.WAVE + together * tiles


def test_how_many_heads_the_l2_holds():
    of = {(d, t): cuda_kernels.heads_at_once(d, t) for d in (64, 128) for t in (128, 1024, 2048, 4096, 8192, 16384)}
    assert [of[64, t] for t in (128, 1024, 2048, 4096, 8192, 16384)] == [8, 8, 8, 8, 4, 16]
    assert [of[128, t] for t in (128, 1024, 2048, 4096, 8192, 16384)] == [16, 16, 8, 4, 16, 16]


@pytest.mark.parametrize("d, causal, name, asked", [
    (64, True, "cuda.v5_hopper", (True, 8, True)), (128, True, "cuda.v5_hopper", (True, 16, False)),
    (64, False, "cuda.v5_hopper", (False, 8, True)), (64, True, "cuda.v5_hopper_ordered", (False, 8, True)),
])  # fmt: skip
def test_how_tiles_are_dealt_out(d, causal, name, asked, monkeypatch):
    """By turns where a mask makes them differ and nobody adds in turn; zeros come near where a head's sums are few."""
    seen, dealt = [], cuda_kernels.dealt
    monkeypatch.setattr(
        cuda_kernels, "dealt", lambda by, group, tiles, heads, near: seen.append((by, heads, near)) or dealt(by, group, tiles, heads, near)
    )
    computed(problem(30, 30, d, causal), name)
    assert seen == [asked]


CLEARED = [  # T, S, D, causal, heads, of keys, back, together, ahead, tiles that clear: fewer than a head has, one, more than it has blocks
    (260, 400, 64, True, 5, 5, 2, 1, 1, 2), (300, 300, 128, True, 4, 4, 2, 2, 2, 1), (300, 300, 64, False, 4, 2, 1, 1, 2, 2), (60, 400, 128, True, 6, 6, 4, 2, 2, 3),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("t, s, d, causal, h, g, back, together, ahead, clearing", CLEARED)
def test_who_clears_for_whom(t, s, d, causal, h, g, back, together, ahead, clearing, name, monkeypatch):
    """Tensors that nobody has cleared are NaN here."""
    walking(monkeypatch, 2)
    rounds(monkeypatch, back, 1 if name.endswith("ordered") else together, ahead, clearing)
    call = problem(t, s, d, causal, torch.float16 if t % 4 else torch.bfloat16, b=2, h=h, g=g)
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor,
        "new_empty",
        lambda self, *size, **more: empty(self, *size, **more).fill_(-1 if more.get("dtype") == torch.int32 else torch.nan),
    )
    assert close(call, computed(call, name))


UNCLEARED = {  # as it stands and wrong
    "store_global(gMine + k, zeros);": "",
    "if (i_bh < first) clear<D>(gDq, row);": "if (i_bh + 1 < first) clear<D>(gDq, row);",
    "i_bh + anew(earlier.ahead), share": "i_bh + 1 + anew(earlier.ahead), share",
    "i += anew(earlier.clearing)) {\n      float* gMine": "i += 2 * anew(earlier.clearing)) {\n      float* gMine",
    "k < 2 * HALF; k += 4 * WARP": "k < HALF; k += 4 * WARP",
    "!= shares) spin_pause();": "> shares) spin_pause();",  # waits for nobody
    "    fence_async_global();  // it is an engine that adds\n": "",
    "    __threadfence();  // for all lanes, by the one that says so\n": "",
}  # fmt: skip


@pytest.mark.parametrize("stands", some(UNCLEARED, "k < 2 * HALF; k += 4 * WARP"))
def test_what_is_added_to_something_else_than_zeros_is_seen(stands, tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_kernels, "V5", rewritten(cuda_kernels.V5, stands, UNCLEARED[stands], tmp_path))
    rounds(monkeypatch, 2, 1, 1)
    monkeypatch.setattr(cuda_kernels, "resident", lambda *_: 4)  # blocks at once
    call = problem(300, 130, 128, False, h=4)
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor,
        "new_empty",
        lambda self, *size, **more: empty(self, *size, **more).fill_(0 if more.get("dtype") == torch.int32 else 9),
    )
    with contextlib.suppress(simulator.Found), simulator.active("all"):
        assert not close(call, KERNELS["cuda.v5_hopper"].run(*call))


SHARES = [  # T, S, D, causal, heads, of keys, back, together: blocks of queries that a tile rounds: none, one, or more than the rings have stages
    (130, 140, 64, True, 4, 4, 1, 1), (100, 300, 128, False, 3, 3, 2, 1), (450, 130, 128, False, 2, 2, 1, 1), (400, 70, 64, True, 3, 3, 1, 1),
    (130, 290, 64, False, 4, 2, 1, 1), (140, 150, 128, True, 6, 2, 1, 1), (140, 270, 128, True, 5, 5, 2, 2), (300, 140, 64, True, 7, 7, 3, 3),
]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("t, s, d, causal, h, g, back, together", SHARES)
def test_shares_of_earlier_heads(t, s, d, causal, h, g, back, together, name, monkeypatch):
    walking(monkeypatch, 3)
    call = problem(t, s, d, causal, torch.float16 if t % 4 else torch.bfloat16, b=2, h=h, g=g)
    alone = computed(call, name)  # every head is among the last
    rounds(monkeypatch, back, 1 if name.endswith("ordered") else together)
    made = computed(call, name)
    assert close(call, made)
    if name.endswith("ordered"):
        assert all(map(torch.equal, made, alone))


PLANTED = {  # as it stands and wrong; the kernel and the order of blocks and threads that show it
    "bulk_wait<0>();            //": ("bulk_wait_read<0>();  //", "cuda.v5_hopper", None),  # read, but not yet added
    "    __threadfence();\n      atomicAdd(": ("    atomicAdd(", "cuda.v5_hopper", None),
    "while (load_acquire(earlier.gAdded + i_bh) != int(2 * anew(w.tiles))) spin_pause();": ("", "cuda.v5_hopper", None),
    "!= int(2 * anew(w.tiles))": ("< int(2 * anew(w.tiles)) - 1", "cuda.v5_hopper", 4),  # one half of one tile is missing
    "((long long)i_bh * w.blocks + i)": ("((long long)(i_bh + 1) * w.blocks + i)", "cuda.v5_hopper", None),
    "i_bh = keys.i_bh - earlier.back;": ("i_bh = keys.i_bh - earlier.back + 1;", "cuda.v5_hopper", None),
    "int heads = i_bh < 0 ? 0": ("int heads = i_bh <= 0 ? 0", "cuda.v5_hopper", None),
    "gRow += earlier.stride_h": ("gRow", "cuda.v5_hopper", None),
    "first + from_the_end()": ("first + 1 + int(blockIdx.x)", "cuda.v5_hopper", None),
}


@pytest.mark.thorough
@pytest.mark.parametrize("stands", PLANTED)
def test_a_share_taken_too_early_or_of_another_head_is_seen(stands, tmp_path, monkeypatch):
    instead, name, seed = PLANTED[stands]
    monkeypatch.setattr(cuda_kernels, "V5", rewritten(cuda_kernels.V5, stands, instead, tmp_path))
    rounds(monkeypatch, 1)
    walking(monkeypatch, 2)
    monkeypatch.setattr(cuda_kernels, "resident", lambda *_: 4)  # blocks at once
    call = problem(300 if seed else 100, 130, 128, bool(seed), h=4, g=2)
    with contextlib.suppress(simulator.Found), simulator.active("all", seed=seed):
        assert not close(call, KERNELS[name].run(*call))


def test_the_last_heads_are_left_to_a_kernel_of_their_own(monkeypatch):
    """And no others: the rows of those rounded before are not in the grid."""
    rounds(monkeypatch, 2)
    walking(monkeypatch, 3)
    grids = []
    real = cuda_kernels.launch
    monkeypatch.setattr(
        cuda_kernels,
        "launch",
        lambda source, name, grid, *rest, **more: (grids.append((name, grid)), real(source, name, grid, *rest, **more)),
    )
    call = problem(130, 70, 64, True, b=2, h=6, g=2)
    assert close(call, computed(call))
    assert grids[-1] == ("finish<__nv_bfloat16, 64>", 2 * 3 * 2 * 2)  # two heads of keys, three that share them, two blocks, halves


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_earlier_heads_whatever_comes_first(seed, name, monkeypatch):
    rounds(monkeypatch, 2, 1 if name.endswith("ordered") else 2)
    call = problem(100, 140, 128, True, h=5)
    with simulator.active("all", seed=seed):
        assert close(call, KERNELS[name].run(*call))


# ---- turned back where it is written -------------------------------------------------------------------------------------------


def turned_back(t, h, g, causal, back, together, name, monkeypatch, level="checks"):
    """dq, dk and dv turned back by the kernel, and those it makes otherwise, turned back after it."""
    call = problem(t, t, 64, causal, torch.float16 if t % 4 else torch.bfloat16, b=2, h=h, g=g)
    angles = torch.randn(t + 3, 32, generator=torch.Generator().manual_seed(t))
    cos, sin = angles.cos(), angles.sin()
    rounds(monkeypatch, back, 1 if name.endswith("ordered") else together)
    walking(monkeypatch, h)  # one over a tile, as there is where they are turned back
    dq, dk, dv = computed(call, name)
    with simulator.active(level):
        made = KERNELS[name].run(*call, turned=(cos, sin))
    return made, (*OPS["rope"].spec.reference(dq, dk, cos, -sin, None, False), dv)


def alike(made, wanted):
    """dk is turned before it is rounded: nearer by half a last bit of either number of a pair."""
    return all(torch.allclose(a.float(), b.float(), rtol=2.0**-7, atol=2.0**-7 * b.float().abs().max()) for a, b in zip(made, wanted))


TURNS = [  # tokens, causal, heads, of keys, back, together: whole in the last kernel, most in the walk's, beyond the last whole block
    (130, True, 4, 4, 1, 1), (260, True, 4, 2, 1, 1), (100, False, 3, 3, 2, 1), (128, False, 2, 1, 1, 1), (391, True, 3, 3, 3, 3),
]  # fmt: skip


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("t, causal, h, g, back, together", TURNS)
def test_turned_back_where_it_is_written(t, causal, h, g, back, together, name, monkeypatch):
    made, wanted = turned_back(t, h, g, causal, back, together, name, monkeypatch)
    assert alike(made, wanted) and torch.equal(made[2], wanted[2])
    assert torch.allclose(made[0].float(), wanted[0].float(), rtol=2.0**-7, atol=1e-6)  # from the numbers that rope would find


@pytest.mark.thorough
def test_turning_back_races_with_nobody(monkeypatch):
    assert alike(*turned_back(140, 2, 2, True, 1, 1, "cuda.v5_hopper_ordered", monkeypatch, level="all"))


TURNED_WRONG = {
    "column < 32 ? 1.0f : -1.0f": "column < 32 ? -1.0f : 1.0f",
    "(column ^ 32) * 2": "column * 2",
    "(i_t + row) * 32ll": "row * 32ll",
    "i_t + eight * 8 + 64": "i_t + eight * 8",
    "tables, i_t + row);": "tables, row);",
    "a = from * cosine[j] + b * sine[j]": "a = from * cosine[j] - b * sine[j]",
    "b = b * cosine[j] - from * sine[j]": "b = b * cosine[j] - a * sine[j]",
    "min(i_s + i / 2 % 2 * 8, S - 1)": "min(i_s, S - 1)",
    "i / 4 * 8 + column;": "column;",
    "column = column_of(i_thread);": "column = column_of(i_thread % 2);",
    "dk[i + j + D / 4]": "dk[i + j + D / 8]",
    "i_s += i_thread / 128 * 64": "i_s += i_thread / 256 * 64",
    "earlier.tables, tile.i_tile * BLOCK_N": "earlier.tables, 0 * BLOCK_N",
}


@pytest.mark.parametrize("stands", some(TURNED_WRONG, "(column ^ 32) * 2"))
def test_a_turn_the_wrong_way_is_seen(stands, tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_kernels, "V5", rewritten(cuda_kernels.V5, stands, TURNED_WRONG[stands], tmp_path))
    assert not alike(*turned_back(260, 4, 2, True, 1, 1, "cuda.v5_hopper", monkeypatch))


def test_who_turns_back():
    """The kernel where it can, rope where not; and rope has nothing left to do then."""
    cos, sin = torch.ones(8, 32), torch.zeros(8, 32)
    assert cuda_kernels.turns_back(64, cos, sin, None, False)
    for call in ((128, cos, sin, None, False), (64, cos, sin, torch.zeros(1, 8), False), (64, cos, sin, None, True), (64, cos[:, :16], sin, None, False),
                 (64, cos.half(), sin.half(), None, False), (64, cos, torch.zeros(32, 8).t(), None, False)):  # fmt: skip
        assert not cuda_kernels.turns_back(*call)


# ---- faults ------------------------------------------------------------------------------------------------------------------

# What the simulator does not miss: that an addition has been carried out before the next block's begins, which is in no value, and a second wgmma_fence
# since the last wait, though it is for other registers. The kernels of packed sequences are test_attention_banded.py's.
TEXT = cuda_kernels.V5.text.split("// ---- the kernels of packed sequences")[0]
SECOND_FENCE = next(i for i, line in enumerate(TEXT.splitlines()) if "void queries(" in line) + 3
NEEDED = [i for i in orders(TEXT, "bulk_wait<0>") if i != SECOND_FENCE]


def faulty(source, monkeypatch, name="cuda.v5_hopper_ordered") -> bool:
    monkeypatch.setattr(cuda_kernels, "V5", source)
    rounds(monkeypatch, 1)
    # one head; a share of more blocks than stages; where dK and dV leave from where dS lay, walks of as many steps as that has stages; and shares there
    calls = problem(260, 260, 128, True), problem(450, 130, 128, False, h=2), problem(450, 300, 64, True), problem(300, 140, 64, True, h=5)
    for call in calls:
        try:
            if not close(call, computed(call, name, level="all")):
                return True
        except simulator.Found:
            return True
    return False


@pytest.mark.thorough
@pytest.mark.parametrize("name", KERNELS)
def test_whole_it_has_no_fault(name, monkeypatch):
    assert not faulty(cuda_kernels.V5, monkeypatch, name)


ZEROS = {"gZero[threadIdx.x] = gZero[threadIdx.x + 256] =": "gZero[threadIdx.x] =", "* 2 + 1] = 0;": "* 2 + 1] = 1;"}


@pytest.mark.parametrize(
    "stands", [pytest.param(s, marks=pytest.mark.thorough if s.startswith("*") else ()) for s in ZEROS]
)  # that one waits for ever
def test_adding_to_what_nobody_cleared_is_seen(stands, tmp_path, monkeypatch):
    assert faulty(rewritten(cuda_kernels.V5, stands, ZEROS[stands], tmp_path), monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize("line", NEEDED, ids=[f"line-{i + 1}" for i in NEEDED])
def test_no_barrier_fence_or_wait_can_be_taken_away(line, tmp_path, monkeypatch):
    source = without(cuda_kernels.V5, line, tmp_path)
    assert faulty(source, monkeypatch)
