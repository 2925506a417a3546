"""What the grid cannot say of concat_kv: layouts, that it is rope and a copy, that pages are the same elsewhere and 8 bits quantize's, decoding step by
step, what attention_decode makes of it, what is said of wrong calls."""

import pytest
import torch

import processes
from rooftile.core.kernel import OPS
from rooftile.core.spec import Tolerance
from rooftile.cuda import simulator
from rooftile.ops import attention_decode, concat_kv, quantize, rope, rope_table
from rooftile.ops.concat_kv import cuda_kernels, reference
from rooftile.workbench.gauge import U32, Gauge

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def drawn(device="cpu", b=2, g=3, s=12, t=4, d=16):
    cache = [torch.randn(b, g, s, d, device=device) for _ in range(2)]
    new = [torch.randn(b, g, t, d, device=device) for _ in range(2)]
    return *cache, *new, torch.tensor([3, 8], device=device), *rope_table(s, d, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
def test_it_is_rope_and_a_copy(layout, device):
    k_cache, v_cache, k, v, lengths, cos, sin = drawn(device)
    want_k, want_v = k_cache.clone(), v_cache.clone()
    at = lengths[:, None] + torch.arange(4, device=device)
    turned = rope(k, None, cos, sin, at)
    for b, n in enumerate(lengths.tolist()):
        want_k[b, :, n : n + 4], want_v[b, :, n : n + 4] = turned[b], v[b]
    swap = (lambda x: x) if layout == "BHTD" else (lambda x: x.transpose(1, 2).contiguous())
    caches = swap(k_cache), swap(v_cache)
    concat_kv(*caches, swap(k), swap(v), lengths, cos, sin, layout=layout)
    torch.testing.assert_close(caches[0], swap(want_k))
    assert torch.equal(caches[1], swap(want_v))


@pytest.mark.parametrize("device", DEVICES)
def test_token_by_token_is_all_at_once(device):
    k_cache, v_cache, k, v, lengths, cos, sin = drawn(device)
    at_once = k_cache.clone(), v_cache.clone()
    concat_kv(*at_once, k, v, lengths, cos, sin, interleaved=True)
    for t in range(4):
        concat_kv(k_cache, v_cache, k[:, :, t : t + 1], v[:, :, t : t + 1], lengths + t, cos, sin, interleaved=True)
    assert torch.equal(k_cache, at_once[0]) and torch.equal(v_cache, at_once[1])


def pool(page, b=2, g=3, d=16, each=3, device="cpu", dtype=torch.float32):
    """Caches of random pages, and a table of them in random order."""
    caches = [torch.randn(b * each + 1, page, g, d, device=device).to(dtype) for _ in range(2)]
    table = torch.randperm(b * each + 1, device=device)[: b * each].to(torch.int32).view(b, each)
    return caches, table


def in_a_row(cache, table):
    """[B, S, G, D], what a sequence's pages hold."""
    bits = cache.view(torch.uint8) if cache.itemsize == 1 else cache
    return bits[table.long()].view(cache.dtype).flatten(1, 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
@pytest.mark.parametrize("page", [16, 48, 64, 256])
def test_pages_hold_what_a_contiguous_cache_would(page, layout, dtype, device):
    """Of lengths on both sides of a page's end, and nothing else is written."""
    caches, table = pool(page, device=device, dtype=dtype)
    want = [in_a_row(x, table) for x in caches]
    beside = [x.view(torch.uint8)[sorted(set(range(7)) - set(table.flatten().tolist()))] for x in caches]
    lengths = torch.tensor([page - 3, 2 * page], device=device)
    k, v = (torch.randn(2, 5, 3, 16, device=device) for _ in range(2))
    turns = rope_table(3 * page, 16, device=device)
    scales = {"k_scale": torch.tensor([0.25, 0.1, 3.0], device=device)} if dtype.itemsize == 1 else {}
    concat_kv(*want, k, v, lengths, *turns, layout="BTHD", **scales)
    new = (k, v) if layout == "BTHD" else (k.transpose(1, 2), v.transpose(1, 2))
    concat_kv(*caches, *new, lengths, *turns, layout=layout, block_table=table, **scales)
    assert all(torch.equal(in_a_row(x, table).view(torch.uint8), w.view(torch.uint8)) for x, w in zip(caches, want))
    left = [x.view(torch.uint8)[sorted(set(range(7)) - set(table.flatten().tolist()))] for x in caches]
    assert all(map(torch.equal, left, beside))


@pytest.mark.parametrize("device", DEVICES)
def test_8_bits_are_those_of_quantize(device):
    x = torch.randn(6, 32, device=device) * torch.logspace(-4, 4, 6, device=device)[:, None]
    x[0, 0], x[3, 3] = float("nan"), 0.0
    values, scale = quantize(x, torch.float8_e4m3fn)
    cache = torch.zeros(2, 1, 6, 1, 32, device=device).to(torch.float8_e4m3fn)
    new = x[None, :, None]
    concat_kv(*cache, new, new, torch.tensor([0], device=device), layout="BTHD", k_scale=scale.reshape(1), v_scale=scale.reshape(1))
    assert scale.numel() == 1 and all(torch.equal(c.view(torch.uint8).view(6, 32), values.view(torch.uint8)) for c in cache)


def test_the_truth_saturates():
    """What float64 holds, 8 bits need not."""
    cache, new = torch.zeros(2, 1, 1, 1, 4).double(), torch.tensor([1e6, -449.0, 224.5, 1.0]).double().view(1, 1, 1, 4)
    OPS["concat_kv_e4m3"].spec.reference(*cache, new, new, torch.tensor([0]), None, None, False, None, None, torch.tensor([0.5]).double())
    assert cache.flatten(1).tolist() == [[448.0, -448.0, 224.5, 1.0], [448.0, -448.0, 448.0, 2.0]]


def told(cache, scale):
    return cache.double() if scale is None else cache.double() * scale.double()[:, None]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [16, 64, 256])
@pytest.mark.parametrize("narrow, scaled", [(False, False), (True, False), (True, True)])
def test_attention_decode_reads_what_was_written(narrow, scaled, page, device):
    """Three chunks into pages, then attention over them. What is stored is the float64 key to a rounding, and attention is right by the gate's measure of
    float64 attention over what is stored: so a scale that one divides by and the other does not multiply by, or a page that they number otherwise, shows."""
    torch.manual_seed(0)
    b, g, h, d, dtype = 2, 2, 4, 64, torch.bfloat16
    caches, table = pool(page, b, g, d, 5, device, torch.float8_e4m3fn if narrow else dtype)
    room = 5 * page
    scales = [torch.tensor([0.02, 0.3], device=device), torch.tensor([0.5, 0.01], device=device)] if scaled else [None, None]
    k, v = (torch.randn(b, 40, g, d, device=device).to(dtype) for _ in range(2))
    cos, sin = rope_table(room, d, device=device)
    begin = torch.tensor([0, page + 3], dtype=torch.int32, device=device)
    for first, last in ((0, 20), (20, 39), (39, 40)):
        concat_kv(*caches, k[:, first:last], v[:, first:last], begin + first, cos, sin, layout="BTHD", block_table=table,
                  **(dict(zip(("k_scale", "v_scale"), scales)) if narrow else {}))  # fmt: skip
    stored = [told(in_a_row(x, table), s) for x, s in zip(caches, scales)]
    where = begin.long()[:, None] + torch.arange(40, device=device)
    c, s = (x.double()[where][:, :, None] for x in (cos, sin))
    first, second = k.double().chunk(2, -1)
    turned = torch.cat((first * c - second * s, first * s + second * c), -1)
    for x, want, scale in zip(stored, (turned, v.double()), scales):
        apart = (x[torch.arange(b, device=device)[:, None], where] - want).abs()
        unit, least = (2.0**-4, 2.0**-10) if narrow else (2.0**-8, 2.0**-20)
        smallest = least if scale is None else least * scale.double()[:, None]
        assert bool((apart <= 1.001 * unit * want.abs() + smallest).all())
    q, lengths = torch.randn(b, 1, h, d, device=device).to(dtype), begin + 40

    def attended(q, keys, values):
        scores = torch.einsum("bhd,bshd->bhs", q[:, 0], keys.repeat_interleave(h // g, 2)) * d**-0.5
        hidden = torch.arange(room, device=device) >= lengths[:, None]
        p = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        return torch.einsum("bhs,bshd->bhd", p, values.repeat_interleave(h // g, 2))[:, None]

    keys, values = (torch.where((torch.arange(room, device=device) < lengths[:, None])[:, :, None, None], x, 0.0) for x in stored)
    noisy = [attended(*(x * (1 + 2 * U32 * torch.randn_like(x)) for x in (q.double(), keys, values))) for _ in range(3)]
    own = attended(*(x.float() for x in (q, keys, values))).to(dtype)
    measure = Gauge(attended(q.double(), keys, values), own, noisy, 1.0, Tolerance(), False)
    given = dict(zip(("k_scale", "v_scale"), scales)) if narrow else {}
    reading = measure.read(attention_decode(q, *caches, lengths, block_table=table, **given))
    assert reading.passed, reading.message


def test_it_compiles_into_one_graph():
    table, turns = pool(16)[1], rope_table(48, 16)
    k, v = torch.randn(2, 3, 5, 16), torch.randn(2, 3, 5, 16)

    def write(k_cache, v_cache, k_scale):
        concat_kv(k_cache, v_cache, k, v, torch.tensor([14, 3]), *turns, block_table=table, k_scale=k_scale)
        return k_cache

    for dtype, scale in ((torch.float32, None), (torch.float8_e4m3fn, torch.tensor([0.5, 2.0, 0.3]))):
        caches = pool(16, dtype=dtype)[0]
        others = [x.clone() for x in caches]
        write(*caches, scale)
        torch.compile(write, fullgraph=True, backend="aot_eager")(*others, scale)
        assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(caches, others))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_graph_is_replayed_while_sequences_grow(dtype):
    """Lengths and pages are read on the device: tokens one by one, by a captured step, are all at once."""
    caches, table = pool(16, device="cuda", dtype=dtype)
    at_once, lengths = [x.clone() for x in caches], torch.tensor([14, 3], device="cuda")
    k, v = (torch.randn(2, 20, 3, 16, device="cuda").bfloat16() for _ in range(2))
    turns = rope_table(48, 16, device="cuda")
    concat_kv(*at_once, k, v, lengths, *turns, layout="BTHD", block_table=table)
    step, now = [torch.empty_like(k[:, :1]) for _ in range(2)], lengths.clone()
    for _ in range(4):
        concat_kv(*[x.clone() for x in caches], *step, now, *turns, layout="BTHD", block_table=table)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        concat_kv(*caches, *step, now, *turns, layout="BTHD", block_table=table)
    for t in range(20):
        step[0].copy_(k[:, t : t + 1]), step[1].copy_(v[:, t : t + 1]), now.copy_(lengths + t)
        graph.replay()
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(caches, at_once))


@pytest.mark.gpu
def test_what_does_not_fit_is_not_written_on_a_gpu():
    k_cache, v_cache, k, v = drawn("cuda")[:4]
    before = k_cache.clone()
    concat_kv(k_cache, v_cache, k, v, torch.tensor([10, -1], device="cuda"))
    assert torch.equal(k_cache[:, :, :10], before[:, :, :10]) and torch.equal(k_cache[1], before[1])
    assert torch.equal(k_cache[0, :, 10:], k[0, :, :2])


@pytest.mark.parametrize(
    "change, said",
    [
        ({"lengths": torch.tensor([3, 9])}, "a sequence has 9 keys, 4 more do not fit a cache of 12"),
        ({"cos": torch.ones(11, 8), "sin": torch.ones(11, 8)}, "a position is 11, but the table has 11 rows"),
        ({"lengths": torch.tensor([-1, 0])}, "a sequence has -1 keys"),
        ({"lengths": torch.tensor([3])}, "B is 1 in lengths, but 2 in"),
        ({"sin": None}, "cos is given without sin"),
        ({"v": torch.zeros(2, 3, 4, 8)}, "D is 8 in v, but 16 in"),
        ({"k": torch.zeros(2, 3, 4, 16, requires_grad=True)}, "but k requires a gradient"),
        ({"cos": torch.ones(12, 8, requires_grad=True), "sin": torch.ones(12, 8)}, "but cos requires a gradient"),
        ({"layout": "BSHD"}, "layout is 'BSHD', it takes BHTD or BTHD"),
        ({"cos": torch.ones(12, 9), "sin": torch.ones(12, 9)}, "the table turns 9 pairs, but D=16 has 8"),
    ],
)
def test_a_wrong_call_names_both_sides(change, said):
    call = dict(zip(("k_cache", "v_cache", "k", "v", "lengths", "cos", "sin"), drawn()))
    before = call["k_cache"].clone()
    with pytest.raises(ValueError, match=said):
        concat_kv(**{**call, **change})
    assert torch.equal(call["k_cache"], before)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"lengths": torch.tensor([3, 45])}, "a sequence has 45 keys, 4 more do not fit 3 pages of 16"),
        ({"block_table": torch.tensor([[0, 7, 1], [2, 3, 4]], dtype=torch.int32)}, "a block table names page 7 of a cache of 7 pages"),
        ({"block_table": torch.tensor([[0, -1, 1], [2, 3, 4]], dtype=torch.int32)}, "a block table names page -1 of a cache of 7 pages"),
        ({"block_table": torch.zeros(2, 3, dtype=torch.int64)}, "block_table is int64, takes int32"),
        ({"block_table": torch.zeros(3, 3, dtype=torch.int32)}, "B is 3 in block_table, but 2 in k"),
        ({"block_table": torch.zeros(2, dtype=torch.int32)}, r"block_table has 1 axes \[2\], needs 2 \[B L\]"),
        ({"block_table": 3}, "block_table must be a tensor, got int"),
        (
            {"block_table": None, "layout": "BTHD", "k": torch.ones(2, 4, 3, 16), "v": torch.ones(2, 4, 3, 16)},
            "a cache of 7 rows for 2 sequences; pages want a block_table",
        ),
        ({"cos": torch.ones(17, 8), "sin": torch.ones(17, 8)}, "a position is 17, but the table has 17 rows"),
        ({n: torch.zeros(7, 15, 3, 16) for n in ("k_cache", "v_cache")}, "7 pages of 15 keys, it takes 1 page or more, of 16 to 256 keys"),
        ({n: torch.zeros(0, 16, 3, 16) for n in ("k_cache", "v_cache")}, "0 pages of 16 keys, it takes 1 page or more"),
        ({n: torch.zeros(7, 257, 3, 16) for n in ("k_cache", "v_cache")}, "7 pages of 257 keys, it takes 1 page or more"),
        ({"v_cache": torch.zeros(6, 16, 3, 16)}, "P is 6 in v_cache, but 7 in k_cache"),
        ({"v_cache": torch.zeros(7, 16, 3, 16).bfloat16()}, "v_cache is bfloat16, but k_cache is float32"),
        ({"k_scale": torch.ones(3)}, "k_scale is for caches of float8_e4m3fn, this one is float32"),
        (
            {n: torch.zeros(7, 16, 3, 16).to(torch.float8_e5m2) for n in ("k_cache", "v_cache")},
            "k_cache is float8_e5m2, of 8 bits it takes",
        ),
        ({"narrow": True, "v_scale": torch.ones(2)}, "G is 2 in v_scale, but 3 in"),
        ({"narrow": True, "k_scale": torch.ones(3).double()}, "k_scale is float64, takes float32"),
        ({"narrow": True, "k_scale": torch.ones(3, requires_grad=True)}, "but k_scale requires a gradient"),
    ],
)
def test_a_wrong_call_of_pages_names_both_sides(change, said):
    caches, table = pool(16, dtype=torch.float8_e4m3fn if change.pop("narrow", False) else torch.float32)
    call = {"k_cache": caches[0], "v_cache": caches[1], "k": torch.ones(2, 3, 4, 16), "v": torch.ones(2, 3, 4, 16)}
    call |= {"lengths": torch.tensor([14, 3]), **dict(zip(("cos", "sin"), rope_table(48, 16))), "block_table": table}
    before = [x.clone() for x in caches]
    with pytest.raises(ValueError, match=said):
        concat_kv(**{**call, **change})
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(caches, before))


def test_a_table_that_nobody_reads_may_be_short():
    """One of no pairs turns nothing, and no new keys ask for no row."""
    *call, lengths, cos, sin = drawn()
    plain = [x.clone() for x in call]
    concat_kv(*plain, lengths)
    concat_kv(*call, lengths, cos[:0, :0], sin[:0, :0])
    concat_kv(*call[:2], *(x[:, :, :0] for x in call[2:]), lengths, cos[:1], sin[:1])
    assert all(map(torch.equal, call, plain))


FAR = """
import importlib, torch
from rooftile.workbench import interpreter
from rooftile.workbench.inputs import LAYOUTS
kernels = importlib.import_module("rooftile.ops.concat_kv.triton_kernels")
reference = importlib.import_module("rooftile.ops.concat_kv.reference")
torch.manual_seed(0)
far, plain = LAYOUTS["far"], lambda x: x.clone()
angles, scale = torch.randn(32, 4), torch.rand(5) + 0.5
pages = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32)
for wide in ((far, plain), (plain, far)):
    for tables in ((angles.cos(), angles.sin()), (None, None)):
        for rows, block_table, dtype in ((8, None, torch.float32), (8, None, torch.float8_e4m3fn), (16, pages, torch.float32)):
            held = 2 if block_table is None else 4
            lengths = torch.tensor([3, 1] if block_table is None else [15, 15])
            drawn = [torch.randn(held, rows, 5, 10).to(dtype) for _ in range(2)] + [torch.randn(2, 2, 5, 10) for _ in range(2)]
            want, made = (([f(x) for f, x in zip((w[0], w[0], w[1], w[1]), drawn)]) for w in ((plain, plain), wide))
            scales = (scale, None) if dtype.itemsize == 1 else ()
            (reference.concat_kv_e4m3 if scales else reference.concat_kv)(*want, lengths, *tables, False, block_table, *scales)
            kernels.concat_kv(*made, lengths, *tables, False, block_table, *scales, config=kernels.CONFIGS[0])
            torch.testing.assert_close([x.float() for x in made[:2]], [x.float() for x in want[:2]])
"""


def test_heads_beyond_31_bits():
    """Of caches and of what is new, of pages and in 8 bits."""
    done = processes.run(code=FAR, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr[-2000:]


# As on a GPU, where nobody looks: of a length that is none, of keys that do not fit, of pages that are none. And numbers that 8 bits do not hold.
UNSEEN = """
import contextlib, importlib, itertools, sys, torch
if sys.argv[1] == "triton":
    from rooftile.workbench import interpreter
import rooftile
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
kernels, reference = (importlib.import_module(f"rooftile.ops.concat_kv.{n}") for n in (f"{sys.argv[1]}_kernels", "reference"))
kernels.check_room = reference.check_room = lambda *a: None
torch.manual_seed(0)
strange = torch.tensor([449.0, 464.0, 465.0, -1e6, 1e30, float("nan"), float("inf"), -float("inf"), 2.0**-10, 3 * 2.0**-10, -(2.0**-11), 0.0, -0.0, 17.0, 19.0, 1.0625])
lengths = torch.tensor([14, -1, 44, 30, 3], dtype=torch.int64)
table = torch.tensor([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 2**30], [-1, 11, 11]], dtype=torch.int32)
for dtype, narrow in itertools.product((torch.float32, torch.bfloat16), (False, True)):
    k, v = (torch.randn(5, 6, 3, 16).to(dtype) for _ in range(2))
    v[0, 3, 1] = strange.to(dtype)
    angles = torch.randn(48, 8)
    caches = [torch.randn(12, 16, 3, 16).to(torch.float8_e4m3fn if narrow else dtype) for _ in range(2)]
    for scales in ((None, None), (torch.tensor([0.5, 1.0, 0.3]), torch.tensor([0.7, 1.0, 2.0]))) if narrow else ((),):
        op = OPS["concat_kv_e4m3" if narrow else "concat_kv"]
        for kernel in op.kernels[:-1]:
            if not kernel.name.startswith(sys.argv[1]):
                continue
            for config in kernel.configs or ({},):
                want, made = ([x.clone() for x in caches] for _ in range(2))
                rest = (k, v, lengths, angles.cos(), angles.sin(), False, table, *scales)
                op.spec.reference(*want, *rest)
                with simulator.active() if sys.argv[1] == "cuda" else contextlib.nullcontext():
                    assert kernel.objection(dict(zip(op.spec.signature.parameters, (*made, *rest)))) is None
                    kernel.bound(config)(*made, *rest)
                torch.testing.assert_close(made[0].float(), want[0].float(), equal_nan=True, rtol=0.07 if narrow else 0.01, atol=1e-5)
                assert torch.equal(torch.nan_to_num(made[1].float(), 777.0), torch.nan_to_num(want[1].float(), 777.0)), kernel.name
                changed = (made[1].view(torch.uint8) != caches[1].view(torch.uint8)).flatten(1).any(1).tolist()
                assert [i for i in range(12) if changed[i]] == [0, 1, 8, 10], (kernel.name, changed)
"""


@pytest.mark.parametrize("t, g, d, n, interleaved, dtype, paged", [
    (5, 3, 48, 16, True, torch.float32, False), (5, 3, 48, 8, False, torch.bfloat16, True), (7, 5, 32, 0, False, torch.float16, False), (3, 31, 256, 0, False, torch.float32, False),
    (1, 2, 16, 8, False, torch.bfloat16, False), (70, 1, 16, 8, True, torch.bfloat16, True), (2, 9, 128, 64, False, torch.float32, False),
])  # fmt: skip
@pytest.mark.parametrize("narrow", [False, True])
def test_a_block_of_tokens_in_every_config(t, g, d, n, interleaved, dtype, paged, narrow, monkeypatch):
    """Of v3_tokens: pairs, what is copied, heads that no block has threads for at one a thread, blocks that end amid tokens, keys whose heads lie apart, places
    that the tables do not have, as on a GPU, where nobody looks; nothing else is written."""
    for module in (cuda_kernels, reference):
        monkeypatch.setattr(module, "check_room", lambda *a: None)
    op, lengths = OPS["concat_kv_e4m3" if narrow else "concat_kv"], torch.tensor([9, 3])
    new = [torch.randn(2, g, t, d).to(dtype).transpose(1, 2) for _ in range(2)]
    held, page = (13, 20) if paged else (2, 80)
    caches = [torch.randn(held, page, g, d).to(torch.float8_e4m3fn if narrow else dtype) for _ in range(2)]
    table = torch.randperm(13)[:12].to(torch.int32).view(2, 6) if paged else None
    angles = torch.randn(12, n)
    call = (*new, lengths, *((angles.cos(), angles.sin()) if n else (None, None)), interleaved, table)
    call += (torch.rand(g) + 0.5, None) if narrow else ()
    near = {"rtol": 0.07, "atol": 1e-2} if narrow else {"rtol": 0.01 if dtype.itemsize == 2 else 1e-5, "atol": 1e-5}
    rows, want = op.kernel("cuda.v3_tokens"), [x.clone() for x in caches]
    op.spec.reference(*want, *call)
    for config in rows.configs:
        made = [x.clone() for x in caches]
        with simulator.active():
            assert rows.objection(dict(zip(op.spec.signature.parameters, (*made, *call)))) is None
            rows.bound(config)(*made, *call)
        torch.testing.assert_close(made[0].float(), want[0].float(), **near, equal_nan=True)
        assert torch.equal(made[1].view(torch.uint8), want[1].view(torch.uint8)), config


def test_who_takes_blocks_of_tokens():
    """A few tokens Triton writes sooner; a token's heads must fit a block."""
    op = OPS["concat_kv"]
    rows, names = op.kernel("cuda.v3_tokens"), op.spec.signature.parameters

    def call(t, g, d, n=0, interleaved=False, dtype=torch.bfloat16):
        new, angles = torch.zeros(1, t, g, d, dtype=dtype), torch.ones(t, n) if n else None
        return dict(zip(names, (new, new, new, new, torch.tensor([0]), angles, angles, interleaved, None)))

    assert op.kernels[0] is rows and OPS["concat_kv_e4m3"].kernels[0].name == "cuda.v3_tokens"
    assert rows.decline(call(1024, 8, 128)) is None and "pays from 1048576" in rows.decline(call(1023, 8, 128))
    picked = [rows.heuristic(call(2, 8, 128, *how)) for how in ((64,), (), (64, True), (32,), (16,))]
    assert [c["each"] for c in picked] == [1, 2, 2, 1, 2] and {c["threads"] for c in picked} == {128}
    with simulator.active():
        assert rows.objection(call(1, 32, 256, dtype=torch.float32)) is None
        assert rows.objection(call(1, 33, 256, dtype=torch.float32)) == "4 heads a thread are 576 threads a token, and a block has 512"
        assert "copies 8 elements at a time" in rows.objection(call(1, 2, 12))


@pytest.mark.parametrize("kind", ["triton", "cuda"])
def test_what_has_no_place_is_not_written(kind):
    done = processes.run(kind, code=UNSEEN, TRITON_INTERPRET="1" if kind == "triton" else "0")
    assert done.returncode == 0, done.stderr[-2000:]
