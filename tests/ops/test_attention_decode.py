"""What the grid cannot say of attention_decode: whose attention it is, what is not read, what is NaN, and wrong kernels of its own kind."""

import numpy
import pytest
import torch

import processes
from faulty_kernels import rewritten
from rooftile.core.kernel import OPS, Kernel
from rooftile.core.spec import Case
from rooftile.cuda import simulator
from rooftile.ops import attention, attention_decode
from rooftile.ops.attention_decode import fragments_kernels
from rooftile.ops.attention_decode.reference import attention_decode as reference
from rooftile.ops.attention_decode.spec import SPEC, case
from rooftile.ops.attention_decode.triton_kernels import CONFIGS, FOUR, ONE, ONE_WARPS_4, TWO, pick, splits_of
from rooftile.ops.attention_decode.triton_kernels import attention_decode as triton_decode
from rooftile.workbench.check import Problem

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PAGED = case(4, 2, 4, 2, 16, 16, 5, sinks=True, window=30, k_scale=0, v_scale=0)
PAGED = Case(PAGED.dims, PAGED.dtype, {n: x for n, x in PAGED.params.items() if n[1:] != "_scale"}, ("check",))


def int32(*values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def _misread(**changes):
    def run(*args):
        call = dict(zip(SPEC.signature.parameters, args))
        out, lse = reference(**{**call, **{n: change(call) for n, change in changes.items()}})
        return out.contiguous(), lse.contiguous()

    return run


def _without_last_page(c):
    return ((c["lengths"] - 1) // 16 * 16).clamp_min(0).to(torch.int32)


WRONG = {
    "last page dropped": _misread(lengths=_without_last_page),
    "lengths off by one": _misread(lengths=lambda c: (c["lengths"] - 1).clamp_min(0)),
    "wrong group mapping": _misread(q=lambda c: c["q"].unflatten(2, (2, 2)).transpose(2, 3).flatten(2, 3)),
    "sinks forgotten": _misread(sinks=lambda c: None),
    "window off by one": _misread(window=lambda c: c["window"] + 1),
    "pages out of order": _misread(block_table=lambda c: c["block_table"][:, [0, 1, 3, 2, 4]]),
    "keys for values": _misread(v_cache=lambda c: c["k_cache"]),
    "no scale": _misread(scale=lambda c: 1.0),
}


@pytest.fixture(scope="module")
def problem():
    return Problem(SPEC, PAGED, "normal", "cpu")


def test_the_right_kernel_passes(problem):
    assert problem.judge(Kernel("right", _misread())).status == "passed"


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_of_its_own_kind_are_refused(problem, name):
    assert problem.judge(Kernel("planted", WRONG[name])).status == "failed"


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_the_last_rows_of_causal_attention(device):
    q, k, v = (torch.randn(2, n, h, 32, device=device) for n, h in ((5, 6), (41, 2), (41, 2)))
    want = attention(q, *(x.repeat_interleave(3, 2) for x in (k, v)), causal=True)
    torch.testing.assert_close(attention_decode(q, k, v, int32(41, 41, device=device)), want)


@pytest.mark.parametrize("device", DEVICES)
def test_pages_are_the_rows_they_hold(device):
    cache = [torch.randn(7, 16, 2, 32, device=device) for _ in range(2)]
    table, lengths = int32(6, 0, 3, 5, 2, 99, device=device).view(2, 3), int32(47, 20, device=device)
    q = torch.randn(2, 2, 4, 32, device=device)
    rows = [x[table.long().clamp_max(6)].flatten(1, 2) for x in cache]
    for extra in ({}, {"window": 9, "softcap": 3.0, "sinks": torch.randn(4, device=device)}):
        paged = attention_decode(q, *cache, lengths, block_table=table, return_lse=True, **extra)
        torch.testing.assert_close(paged, attention_decode(q, *rows, lengths, return_lse=True, **extra))


@pytest.mark.parametrize("device", DEVICES)
def test_shares_of_the_keys_are_joined_by_their_lse(device):
    q, k, v = (torch.randn(2, n, 4, 32, device=device) for n in (1, 40, 40))
    whole = attention_decode(q, k, v, int32(40, 40, device=device))
    (a, la), (b, lb) = (attention_decode(q, k[:, i], v[:, i], int32(n, n, device=device), return_lse=True)
                        for i, n in ((slice(0, 15), 15), (slice(15, 40), 25)))  # fmt: skip
    share = torch.sigmoid(la - lb).transpose(1, 2)[..., None]
    torch.testing.assert_close(a * share + b * (1 - share), whole)


@pytest.mark.parametrize("device", DEVICES)
def test_a_query_that_sees_nothing(device):
    q, cache = torch.randn(2, 3, 2, 16, device=device), torch.full((2, 8, 1, 16), 2.0, device=device)
    cache[0, 1:], cache[1] = float("nan"), float("nan")  # behind the lengths
    for sinks in (None, torch.tensor([0.5, -1.0], device=device)):
        out, lse = attention_decode(q, cache, cache, int32(1, 0, device=device), sinks=sinks, return_lse=True)
        assert torch.equal(out[0, :2], torch.zeros_like(out[0, :2])) and torch.equal(out[1], torch.zeros_like(out[1]))
        rest = torch.full((2, 3), -torch.inf, device=device) if sinks is None else sinks[:, None].expand(2, 3)
        torch.testing.assert_close(lse[1], rest)
        assert sinks is not None or torch.equal(out[0, 2], torch.full_like(out[0, 2], 2.0))


@pytest.mark.parametrize("device", DEVICES)
def test_caches_of_8_bits_are_what_they_stand_for(device):
    q, k, v = (torch.randn(2, n, h, 32, device=device) for n, h in ((1, 4), (20, 2), (20, 2)))
    k_scale, v_scale = torch.tensor([0.5, 3.0], device=device), torch.tensor([2.0, 0.1], device=device)
    small = [x.to(torch.float8_e4m3fn) for x in (k, v)]
    got = attention_decode(q, *small, int32(20, 7, device=device), k_scale=k_scale, v_scale=v_scale)
    wide = [x.float() * s[:, None] for x, s in zip(small, (k_scale, v_scale))]
    torch.testing.assert_close(got, attention_decode(q, *wide, int32(20, 7, device=device)))
    ones = torch.ones(2, device=device)
    assert torch.equal(attention_decode(q, *small, int32(20, 7, device=device)),
                       attention_decode(q, *small, int32(20, 7, device=device), k_scale=ones, v_scale=ones))  # fmt: skip


def good():
    return {
        "q": torch.zeros(2, 1, 4, 16),
        "k_cache": torch.zeros(2, 32, 2, 16),
        "v_cache": torch.zeros(2, 32, 2, 16),
        "lengths": int32(3, 32),
    }


PAGES = {"k_cache": torch.zeros(3, 16, 2, 16), "v_cache": torch.zeros(3, 16, 2, 16), "block_table": int32(0, 9, 2, 1).view(2, 2)}
WRONG_CALLS = [
    ({"lengths": int32(3, 33)}, "a sequence has 33 keys, its cache has room for 32"),
    ({"lengths": int32(-1, 3)}, "a sequence has -1 keys"),
    ({"lengths": torch.tensor([1, 2])}, "lengths is int64, takes int32"),
    ({"q": torch.zeros(2, 1, 3, 16)}, "3 query heads cannot share 2 key heads"),
    ({"q": torch.zeros(3, 1, 4, 16), "lengths": int32(1, 1, 1)}, "a cache of 2 rows for 3 sequences"),
    ({"q": torch.zeros(2, 1, 4, 16, requires_grad=True)}, "has no gradient, and q requires one"),
    ({"window": 0}, "window is 0, it takes 1 or more"),
    ({"window": numpy.int64(0)}, "window is 0, it takes 1 or more"),
    ({"window": True}, "window is True, it takes 1 or more"),
    ({"window": 0.0}, "window is 0.0, takes int"),
    ({"window": torch.tensor(0)}, r"window is tensor\(0\), takes int"),
    ({"window": (3, 0)}, r"window is \(3, 0\), takes int"),
    ({"softcap": -1.0}, "softcap is -1.0"),
    ({"softcap": float("nan")}, "softcap is nan, takes a finite number"),
    ({"v_scale": 1.0}, "v_scale is for caches of float8_e4m3fn"),
    ({"k_scale": torch.ones(2)}, "k_scale is for caches of float8_e4m3fn, this one is float32"),
    ({"sinks": torch.zeros(5)}, "H is 5 in sinks, but 4 in q"),
    ({"k_cache": torch.zeros(2, 32, 2, 16).to(torch.float8_e4m3fn)}, "v_cache is float32, but k_cache is float8_e4m3fn"),
    ({"v_cache": torch.zeros(2, 32, 2, 16).to(torch.float8_e4m3fn)}, "v_cache is float8_e4m3fn, but k_cache is float32"),
    ({n: torch.zeros(2, 32, 2, 16).to(torch.float8_e5m2) for n in ("k_cache", "v_cache")}, "k_cache is float8_e5m2, of 8 bits it takes float8_e4m3fn"),
    ({**PAGES, "lengths": int32(17, 1)}, "a block table names page 9 of a cache of 3 pages"),
    ({**PAGES, "k_cache": torch.zeros(3, 8, 2, 16), "v_cache": torch.zeros(3, 8, 2, 16)}, "3 pages of 8 keys, it takes 1 page or more, of 16 to 256"),
]  # fmt: skip


@pytest.mark.parametrize("change, said", WRONG_CALLS, ids=[said[:40] for _, said in WRONG_CALLS])
def test_wrong_calls_are_told(change, said):
    with pytest.raises(ValueError, match=said):
        attention_decode(**{**good(), **change})
    attention_decode(**good())


def test_a_window_beyond_all_keys_is_none():
    call = good()
    torch.testing.assert_close(attention_decode(**call, window=2**70), attention_decode(**call))


def test_splits_fill_the_multiprocessors():
    assert [splits_of(*shape, 264)[0] for shape in ((128, 128), (8, 1024), (512, 32))] == [2, 33, 1]  # as the page says of an H200
    for programs, tiles in ((128, 128), (8, 1024), (512, 32), (1, 16384), (8, 1), (4096, 32)):  # the acceptance's three, then extremes
        n, _ = splits_of(programs, tiles, 264)
        assert 1 <= n <= max(1, min(tiles, 256))
        waves, share = -(-programs * n // 264), -(-tiles // n)
        assert waves * share <= 1.1 * programs * tiles / 264 + 2, (programs, tiles, n)


def test_programs_fill_their_waves():
    def call(b, keys, d=128, t=1, page=0):
        caches = {"k_cache": torch.empty(b, keys, 8, d, device="meta"), "block_table": None}
        if page:
            caches = {"k_cache": torch.empty(1, page, 8, d, device="meta"), "block_table": torch.empty(b, keys // page, device="meta")}
        return {"q": torch.empty(b, t, 32, d, device="meta"), **caches}

    # 132 multiprocessors: 128 programs are one each and no shares; 512 are 1.29 waves of three, 0.97 of four; 1024 are 2.6 and 1.94
    shapes = ((1, 65536), (16, 8192), (64, 2048), (98, 2048), (128, 2048))
    assert [pick(call(*shape)) for shape in shapes] == [TWO, ONE, FOUR, TWO, FOUR]
    assert pick(call(16, 8192, page=64)) == pick(call(16, 8192, page=16)) == ONE and pick(call(16, 8192, t=8)) == ONE_WARPS_4
    assert pick(call(64, 2048, d=64)) == pick(call(16, 8192, t=16)) == pick(call(16, 8160, page=24)) == TWO


INTERPRETED = """
import importlib, torch
from rooftile.workbench import interpreter
kernels = importlib.import_module("rooftile.ops.attention_decode.triton_kernels")
reference = importlib.import_module("rooftile.ops.attention_decode.reference").attention_decode
torch.manual_seed(0)
int32 = lambda *x: torch.tensor(x, dtype=torch.int32)
def both(b, t, h, g, d, lengths, cache, table=None, sinks=None, scale=0.25, block=32):
    q, (k, v) = torch.randn(b, t, h, d), (torch.randn(*cache, g, d) for _ in range(2))
    rest = (q, k, v, lengths, table, sinks, scale, 0, 0.0)
    return kernels.attention_decode(*rest, config={**kernels.CONFIGS_32[0], "BLOCK_N": block}), lambda: reference(*rest)
def same(*args, **more):
    made, want = both(*args, **more)
    torch.testing.assert_close(made, want(), rtol=1e-5, atol=1e-5)
same(1, 2, 10, 1, 16, int32(40), (1, 40))                                             # 20 rows: two tiles of 16
same(1, 1, 2, 2, 16, int32(70), (3, 48), int32(2, 0).view(1, 2))                      # pages of no power of two
same(1, 3, 1, 1, 16, int32(33), (2, 64), int32(1).view(1, 1))                         # pages of whole tiles
same(1, 1, 1, 1, 16, int32(9), (1, 9), scale=-3.0, sinks=torch.tensor([-torch.inf]))  # a negative scale, a sink of nothing
same(1, 1, 1, 1, 16, int32(33), (1, 33), scale=400.0)                                 # scores beyond 88
# shares of scores about 100: values of one are joined to one, which shares' logarithms, rounded at 2^7, are not
q, k, v = torch.full((1, 1, 1, 16), 2.5), torch.full((1, 96, 1, 16), 2.5) + torch.rand(1, 96, 1, 1) / 50, torch.ones(1, 96, 1, 16)
out, _ = kernels.attention_decode(q, k, v, int32(96), None, None, 1.0, 0, 0.0, config=kernels.CONFIGS_32[0])
assert (out - 1).abs().max() < 4e-7, out
# keys and values of 8 bits are float16 beside bfloat16 queries: of any size, and weights far below float16's smallest still count where they are many
narrow = lambda x: x.to(torch.float8_e4m3fn).view(torch.uint8)
eight = lambda q, k, v, scale: kernels._e4m3(q, narrow(k), narrow(v), int32(k.shape[1]), None, None, None, None, scale, 0, 0.0, config=kernels.THREE_8)
q, (k, v) = torch.randn(1, 1, 2, 16).bfloat16(), (torch.randn(1, 40, 1, 16) for _ in range(2))
out, lse = eight(q, k, v, 0.25)
want = reference(q.float(), *(narrow(x).view(torch.float8_e4m3fn).float() for x in (k, v)), int32(40), scale=0.25)
assert (out.float() - want[0]).abs().max() < 1e-2 and (lse - want[1]).abs().max() < 1e-5
for power in (2.0**126, 2.0**-100):
    assert all(map(torch.equal, eight(q * power, k, v, 8.0 / power), eight(q, k, v, 8.0))), power
assert eight(q * torch.inf, k, v, 0.25)[0].isnan().all() and eight(q * 0, k, v, 0.25)[0].isfinite().all()
k, v = torch.zeros(1, 4096, 1, 16), torch.full((1, 4096, 1, 16), 448.0)
k[:, 0], v[:, 0] = 1.0, 0.0
(out, _), tail = eight(torch.ones(1, 1, 1, 16).bfloat16(), k, v, 26 * 0.6931471805599453 / 16), 4095 * 2.0**-26
assert (out.float() / (448 * tail / (1 + tail)) - 1).abs().max() < 1e-2, out
# what nobody looks at on a GPU: a page or a length that does not exist is NaN for its sequence, and for no other
for table, lengths in ((int32(0, 9, 1, 2).view(2, 2), int32(17, 17)), (int32(0, -1, 1, 2).view(2, 2), int32(32, 17)),
                       (int32(0, 2, 1, 2).view(2, 2), int32(33, 32)), (int32(0, 2, 1, 2).view(2, 2), int32(-1, 3))):
    for block in (32, 16) if lengths[0] == 17 else (32,):
        (out, lse), _ = both(2, 2, 2, 1, 16, lengths, (3, 16), table, block=block)
        assert out[0, -1].isnan().all() and lse[0, :, -1].isnan().all(), (table, lengths, out[0], lse[0])
        assert out[1].isfinite().all() and lse[1].isfinite().all()
"""


def test_the_kernels_at_their_edges():
    """Through the interpreter, in a child: what the grid's cases do not reach."""
    done = processes.run(code=INTERPRETED, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.gpu
def test_a_graph_is_replayed_while_sequences_grow():
    q, k, v = (torch.randn(3, n, h, 64, device="cuda", dtype=torch.bfloat16) for n, h in ((1, 8), (3000, 2), (3000, 2)))
    lengths = int32(1, 700, 2990, device="cuda")
    attention_decode(q, k, v, lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention_decode(q, k, v, lengths)
    for _ in range(3):
        lengths += 3
        graph.replay()
        torch.testing.assert_close(out, OPS["attention_decode"].launch(q, k, v, lengths, None, None, 0.125, 0, 0.0)[0], rtol=0, atol=0)
    want = reference(q, k, v, lengths, scale=0.125)[0]
    torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_a_second_kernel_launched_early_waits_for_the_first():
    q, k, v = (torch.randn(2, n, h, 128, device="cuda", dtype=torch.bfloat16) for n, h in ((1, 8), (9000, 2), (9000, 2)))
    rest = (q, k, v, int32(9000, 4321, device="cuda"), None, None, 0.125, 0, 0.0)
    early = next(c for c in CONFIGS if c.get("early"))
    want = triton_decode(*rest, config={n: x for n, x in early.items() if n != "early"})
    made = [triton_decode(*rest, config=early) for _ in range(200)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made += [triton_decode(*rest, config=early) for _ in range(10)]
    graph.replay()
    assert all(torch.equal(a, b) for pair in made for a, b in zip(pair, want))


@pytest.mark.parametrize("device", DEVICES)
def test_it_compiles_as_one_graph(device):
    call = {n: x.to(device) for n, x in good().items()}
    compiled = torch.compile(lambda **c: attention_decode(**c, return_lse=True), fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(**call), attention_decode(**call, return_lse=True)):
        assert torch.equal(a, b)


FRAGMENTS = [OPS[name].kernel("cuda.v2_fragments") for name in ("attention_decode", "attention_decode_e4m3")]


@pytest.mark.parametrize("bits", [16, 8])
def test_fragments_of_a_page_and_a_length_that_do_not_exist(bits):
    """NaN for whom they concern, and nobody else; a page that nobody reaches may be any number."""
    made = case(4, 1, 4, 2, 64 * 16 // bits, 32, 3, dtype=torch.bfloat16, full=True, k_scale=0, v_scale=0)
    kernel, op = FRAGMENTS[bits == 8], OPS["attention_decode" + "_e4m3" * (bits == 8)]
    call = op.spec.draw(Case(made.dims, made.dtype, {n: x for n, x in made.params.items() if bits == 8 or n[1:] != "_scale"}, ("check",)))
    with simulator.active():
        right, _ = kernel.run(*call.values(), config=kernel.configs[0])
    call["block_table"] = call["block_table"].clone()
    call["block_table"][1, 1], call["block_table"][2, 2] = 99, -1
    call["lengths"] = int32(97, 96, 64, 96)
    with simulator.active():
        out, lse = kernel.run(*call.values(), config=kernel.configs[0])
        call["lengths"] = int32(96, 32, 64, 96)
        short, _ = kernel.run(*call.values(), config=kernel.configs[0])
    assert out.isnan().flatten(1).all(1).tolist() == lse.isnan().flatten(1).all(1).tolist() == [True, True, False, False]
    assert not out[2:].isnan().any() and not short.isnan().any() and torch.equal(out[3], right[3])


@pytest.mark.parametrize("bits", [16, 8])
def test_fragments_copy_queries_that_begin_between_words(bits):
    """Which `contiguous` does not where they are dense: they were read 8 bytes at a time where they begin."""
    made = case(2, 1, 4, 2, 64 * 16 // bits, 32, dtype=torch.bfloat16, k_scale=0, v_scale=0)
    kernel, op = FRAGMENTS[bits == 8], OPS["attention_decode" + "_e4m3" * (bits == 8)]
    call = op.spec.draw(Case(made.dims, made.dtype, {n: x for n, x in made.params.items() if bits == 8 or n[1:] != "_scale"}, ("check",)))
    q = call["q"]
    with simulator.active("all"):
        want, _ = kernel.run(*call.values(), config=kernel.configs[0])
        call["q"] = torch.zeros(q.numel() + 8, dtype=q.dtype)[1 : 1 + q.numel()].view(q.shape).copy_(q)
        assert kernel.refuse(call) is None and torch.equal(kernel.run(*call.values(), config=kernel.configs[0])[0], want)


def test_more_sequences_than_a_grid_has_are_for_another_kernel():
    b, kernel = 65536, FRAGMENTS[0]
    q, cache = torch.zeros(1, dtype=torch.bfloat16).expand(b, 1, 1, 64).clone(), torch.zeros(1, 16, 1, 64, dtype=torch.bfloat16)
    lengths, table = torch.ones(b, dtype=torch.int32), torch.zeros(b, 1, dtype=torch.int32)
    call = dict(zip(OPS["attention_decode"].names, (q, cache, cache, lengths, table, None, 0.125, 0, 0.0)))
    assert kernel.refuse(call) == "there are 65536 sequences, it takes 65535"
    few = {n: x[1:] if n in ("q", "lengths", "block_table") else x for n, x in call.items()}
    with simulator.active():
        assert kernel.refuse(few) is None


def test_keys_before_every_window_are_anybodys():
    """A serving engine has given their pages to others, or to nobody."""
    op = OPS["attention_decode"]
    q, k, v = (torch.randn(*shape).bfloat16() for shape in ((1, 2, 4, 64), (6, 16, 2, 64), (6, 16, 2, 64)))
    table, lengths = int32(2, 0, 3, 5).view(1, 4), int32(60)
    want = attention_decode(q, k, v, lengths, block_table=table, window=9)
    for x in (k, v):
        x[[0, 2]], x[5, :2] = torch.nan, torch.nan  # and two keys of the page where the first window begins
    for gone in (table, int32(-1, 99, 3, 5).view(1, 4)):
        assert torch.equal(attention_decode(q, k, v, lengths, block_table=gone, window=9), want)
        with simulator.active():
            got, _ = op.kernel("cuda.v2_fragments").run(q, k, v, lengths, gone, None, 0.125, 9, 0.0, config=FRAGMENTS[0].configs[0])
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def _pages_of_a_long_sequence():
    """Whether the right pages are read by a warp that has 70 tiles and looks up 32 at a time, of pages that are no whole steps."""
    made = case(1, 1, 2, 1, 64, 80, 43, dtype=torch.bfloat16, full=True)
    params = {n: x for n, x in made.params.items() if n[1:] != "_scale"}
    call = OPS["attention_decode"].spec.draw(Case(made.dims, made.dtype, params, ("check",)))
    with simulator.active():
        got, _ = FRAGMENTS[0].run(*call.values(), config={"warps": 1, "stages": 3})
    return torch.allclose(got, reference(*call.values())[0], rtol=2e-2, atol=5e-4)  # of numbers of 0.017


def test_fragments_of_a_sequence_longer_than_its_lookups():
    assert _pages_of_a_long_sequence()


FAULTS = {  # in v2_fragments.cu, as it stands and wrong
    "    __syncwarp();\n    ask(": "    ask(",
    "copy_wait<STAGES - 2>();": "copy_wait<STAGES - 1>();",
    "stage == 0 ? STAGES - 1 : stage - 1": "stage",
    "rBase[j][e] = base - LIFT<F>, rSum": "rBase[j][e] = base, rSum",
    "turned(pack(a, b, F()))": "pack(a, b, F())",
    "rAcc[j][m][e] *= shrink, rAcc[j][m][2 + e] *= shrink;": "rAcc[j][m][e] *= shrink;",
    "if (key > last ||": "if (key >= last + 2 ||",
    "key <= last - window)": "key < last - window)",
    "from + row + i_row < length;": "from + row + i_row < room;",
    "window ? 0 : length - T + 1;": "window ? 0 : length + 1;",
    "  copy_wait<0>();\n  __syncthreads();": "  copy_wait<0>();",
    "power = __int_as_float(exponent << 23);": "power = 1.0f;",
    "__shfl_sync(ALL_LANES, i_t, from)": "__shfl_sync(ALL_LANES, i_t, 4 * e)",
    "at - entry * page": "0",
    "later = look_up(n + WARP * step)": "later = here",
    "from + (WARP + 1) * step": "from + WARP * step",
}


@pytest.mark.thorough
@pytest.mark.parametrize("stands", FAULTS)
def test_faults_among_fragments_are_seen(stands, tmp_path, monkeypatch):
    monkeypatch.setattr(fragments_kernels, "V2", rewritten(fragments_kernels.V2, stands, FAULTS[stands], tmp_path))
    specs = [OPS[name].spec for name in ("attention_decode", "attention_decode_e4m3")]
    problems = [Problem(spec, next(c for c in spec.cases if "B5_T4_" in c.id), "normal", "cpu") for spec in specs]
    with simulator.active("all"):
        seen = any(problem.judge(kernel).status == "failed" for problem, kernel in zip(problems, FRAGMENTS))
    assert seen or not _pages_of_a_long_sequence()


def test_keys_that_lie_far_apart_within_a_page_are_for_another_kernel():
    """As in a cache of [page, pages, G, D], pages that lie across: Triton's would read before it, where nothing is."""
    op = OPS["attention_decode"]
    whole = torch.empty(64, 200000, 8, 64, dtype=torch.bfloat16, device="meta").transpose(0, 1)
    q, lengths, table = torch.empty(2, 1, 8, 64, dtype=torch.bfloat16), int32(64, 9), int32(0, 1).view(2, 1)
    call = dict(zip(op.names, (q, whole, whole, lengths, table, None, 0.125, 0, 0.0)))
    assert "rows of k_cache lie 102400000 elements apart" in op.kernel("triton").refuse(call)
    assert "rows" not in (op.kernel("triton").refuse({**call, "k_cache": whole.contiguous(), "v_cache": whole.contiguous()}) or "")
