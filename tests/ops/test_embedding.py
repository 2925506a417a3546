"""What the grid cannot say of embedding: frequent tokens, padding, a drop-in module, messages."""

import pytest
import torch

from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.cuda.launch import recording
from rooftile.ops import Embedding, embedding, tied_embedding
from rooftile.ops.embedding import api, bulk_kernels, reference
from rooftile.workbench.check import poisoned


def test_one_token_for_all_sums_every_gradient():
    w = torch.randn(5, 3, requires_grad=True)
    embedding(torch.full((4, 1000), 2), w).sum().backward()
    assert torch.equal(w.grad, torch.zeros(5, 3).index_fill(0, torch.tensor(2), 4000.0))


def test_float32_sums_behind_a_narrow_table():
    """4096 times 1 in bfloat16 would stop at 256."""
    w = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    embedding(torch.zeros(4096, dtype=torch.int64), w).sum().backward()
    assert w.grad[0, 0] == 4096


ASKED = torch.tensor([[1, 4, 1], [0, 4, 4]])
USES = {  # of rows and head; `other` is another leaf
    "both": lambda rows, head, other: (rows * 2).sum() + (head * other).sum(),
    "rows alone": lambda rows, head, other: (rows * 2).sum(),
    "the head alone": lambda rows, head, other: (head * other).sum(),
    "the head twice": lambda rows, head, other: (rows * rows).sum() + (head * other).sum() + (head * head).sum(),
    "a gradient that is another's too": lambda rows, head, other: (
        (rows * 2).sum() + ((head + (other * 1)) * torch.arange(10.0).view(5, 2)).sum()
    ),
    "a gradient that is one number": lambda rows, head, other: rows.sum() + head.sum() + other.sum(),
    "a gradient that is a view": lambda rows, head, other: rows.sum() + (head.view(2, 5) * other.view(2, 5)).sum(),
}


def gradients(make, use, times=1):
    torch.manual_seed(0)
    weight, other = (torch.randn(5, 2, requires_grad=True) for _ in range(2))
    loss = use(*make(ASKED, weight), other)
    for i in range(times):
        loss.backward(retain_graph=i + 1 < times)
    return weight.grad, other.grad


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("times", [1, 2])
def test_a_tied_weight_has_both_gradients(use, times):
    theirs = gradients(lambda i, w: (torch.nn.functional.embedding(i, w), w), use, times)
    for ours, wanted in zip(gradients(tied_embedding, use, times), theirs):
        assert wanted is None if ours is None else torch.allclose(ours, wanted)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_heads_gradient_is_added_to_where_it_lies(device, monkeypatch):
    """And not where it is somebody else's."""
    written = []
    accumulate = api._accumulate.launch
    monkeypatch.setattr(
        api._accumulate,
        "launch",
        lambda rows, indices, grad, padding: written.append(grad.data_ptr()) or accumulate(rows, indices, grad, padding),
    )

    def backward(hook, given=None):
        weight = torch.zeros(5, 2, device=device, requires_grad=True)
        rows, head = tied_embedding(ASKED.to(device), weight)
        head.register_hook(hook)
        if given is None:
            (rows.sum() + (head * torch.ones_like(head)).sum()).backward()
        else:
            torch.autograd.backward([rows, head], [torch.ones_like(rows), given])
        assert weight.grad[:, 0].tolist() == [2, 3, 1, 1, 4]
        return written.pop()

    places, kept = [], []
    assert backward(lambda g: places.append(g.data_ptr())) == places.pop()
    assert backward(lambda g: None, held := torch.ones(5, 2, device=device)) != held.data_ptr()
    assert backward(kept.append) != kept[0].data_ptr()
    assert backward(lambda g: kept.append(g.view(10))) != kept[1].data_ptr()
    assert backward(lambda g: kept.append(g.detach())) != kept[2].data_ptr()
    assert all(torch.equal(t, torch.ones_like(t)) for t in (held, *kept))


def test_a_tied_weight_without_a_gradient():
    weight = torch.ones(5, 2)
    rows, head = tied_embedding(ASKED, weight)
    assert rows.grad_fn is None and head is weight
    with torch.no_grad():
        assert tied_embedding(ASKED, weight.requires_grad_())[1] is weight


@pytest.mark.parametrize("padding", [None, 1, -1])
def test_module_is_a_drop_in(padding):
    theirs, ours = torch.nn.Embedding(4, 3, padding_idx=padding), Embedding(4, 3, padding_idx=padding)
    ours.load_state_dict(theirs.state_dict())
    i = torch.tensor([[0, 1, 1], [3, 3, 3]])
    assert torch.equal(ours(i), theirs(i))
    ours(i).sum().backward()
    theirs(i).sum().backward()
    assert torch.equal(ours.weight.grad, theirs.weight.grad)


def test_messages_have_both_numbers():
    w = torch.zeros(4, 2)
    with pytest.raises(ValueError, match="an index is 4, but the weight has 4 rows"):
        embedding(torch.tensor([0, 4]), w)
    with pytest.raises(ValueError, match="an index is -1, but the weight has 4 rows"):
        embedding(torch.tensor([0, -1]), w)
    with pytest.raises(ValueError, match="padding_idx is 9, but the weight has 4 rows"):
        embedding(torch.tensor([0]), w, 9)
    with pytest.raises(ValueError, match="int32"):
        embedding(torch.tensor([0], dtype=torch.int32), w)
    with pytest.raises(ValueError, match=r"max_norm=1\.0 is not supported"):
        Embedding(4, 2, max_norm=1.0)
    with pytest.raises(ValueError, match=r"max_norm=0\.0 is not supported"):  # rows of norm 0, no word for none
        Embedding(4, 2, max_norm=0.0)


BACKWARD = OPS["embedding_backward"]
ADDED = OPS["embedding_accumulate"].kernel("cuda.v5_dealt")
RUNGS = [(k, c) for k in BACKWARD.kernels if k.name.startswith("cuda.") for c in k.configs or ({},)]
FEW_ROWS = ("cuda.v4_shares",)
TOKENS = {  # which of V rows M tokens ask for
    "a few each": lambda m, v: torch.randint(0, v, (m,)),
    "one for all": lambda m, v: torch.full((m,), v // 2),
    "the first and the last": lambda m, v: torch.randint(0, 2, (m,)) * (v - 1),
    "frequent and rare": lambda m, v: (torch.rand(m) ** 6 * v).long().clamp(0, v - 1),
    "some outside": lambda m, v: torch.randint(-2, v + 2, (m,)).where(torch.arange(m) % 9 > 0, 2**40),
}


@pytest.mark.sampled(11)
@pytest.mark.parametrize("tokens", TOKENS.values(), ids=list(TOKENS))
@pytest.mark.parametrize("kernel, config", RUNGS, ids=lambda x: getattr(x, "name", None) or "_".join(map(str, x.values())))
def test_every_rung_and_config_adds_up_all_segments(kernel, config, tokens):
    """Segments in one span, over the border of two and over more than 32; rows that nobody asks for, also all of them but two in a row; ranges
    of rows for which the sort keeps more counters than a block has threads."""
    torch.manual_seed(0)
    for m, v, n in ((700, 301, 24), (2100, 3, 20), (90, 1201, 8), (333, 5, 9), (5000, 2, 4), (2600, 512, 4)):
        indices, weight, dout = tokens(m, v), torch.zeros(v, n), torch.randint(-4, 5, (m, n)).float()
        if v > 512 and kernel.name in FEW_ROWS:
            continue  # it refuses, as a test below says
        for padding in (-1, 1):
            want = BACKWARD.spec.reference(dout, indices, weight, padding)
            with simulator.active(), poisoned():
                assert torch.equal(kernel.bound(config)(dout, indices, weight, padding), want)


@pytest.mark.parametrize("config", ADDED.configs, ids=lambda c: "_".join(map(str, c.values())))
def test_what_is_there_comes_with_the_tokens_or_behind_them(config):
    """Rows that nobody asks for are left alone, and a cut segment's sum is added once."""
    torch.manual_seed(0)
    for tokens in TOKENS.values():
        for m, v, n in ((333, 5, 9), (700, 301, 24)):
            indices, grad, dout = tokens(m, v), torch.randint(-4, 5, (v, n)).float(), torch.randint(-4, 5, (m, n)).float()
            want = grad + BACKWARD.spec.reference(dout, indices, grad, 1)
            with simulator.active(), poisoned():
                ADDED.bound(config)(dout, indices, grad, 1)
            assert torch.equal(grad, want)


@pytest.mark.parametrize("n, dtype, tokens", [(768, torch.float32, 2), (768, torch.bfloat16, 2), (2048, torch.bfloat16, 1)])
def test_two_tokens_come_with_what_is_there_where_registers_hold_both(n, dtype, tokens):
    call = {"dout": torch.empty(9, n, dtype=dtype, device="meta"), "dweight": torch.empty(5, n, dtype=dtype, device="meta")}
    assert ADDED.pick(call) == {"tokens": tokens, "span": 16, "warps": 8}


@pytest.mark.parametrize("n, full", [(128, True), (384, True), (768, True), (640, False), (772, False), (130, False)])
def test_no_lane_looks_for_columns_where_strips_end_with_rows(n, full):
    """Of 640 float32 columns the second strip of three vectors a lane ends behind the row. Seen red: taken for full, it read beyond dout."""
    torch.manual_seed(0)
    indices, dout, grad = torch.randint(0, 5, (90,)), torch.randint(-4, 5, (90, n)).float(), torch.randint(-4, 5, (9, n)).float()
    config = {"tokens": 2, "span": 16, "warps": 8}
    sums = BACKWARD.spec.reference(dout, indices, grad, -1)

    def both():
        return BACKWARD.kernel("cuda.v5_dealt").bound(config)(dout, indices, grad, -1), ADDED.bound(config)(dout, indices, grad, -1)

    want = grad + sums
    with simulator.active(), poisoned():
        got, _ = both()
    assert torch.equal(got, sums) and torch.equal(grad, want)
    with recording() as seen:
        both()
    assert [x.instance.split("2, ")[-1] for x in seen if x.instance.startswith("sums")] == [f"{full}>".lower(), f"{full}, true>".lower()]


@pytest.mark.parametrize("kernel", [k for k in BACKWARD.kernels if k.name.startswith("cuda")], ids=lambda k: k.name)
def test_without_a_token_all_rows_are_zeros(kernel):
    call = {"dout": torch.zeros(0, 8), "indices": torch.zeros(0, dtype=torch.int64), "weight": torch.zeros(5, 8), "padding_idx": -1}
    with simulator.active(), poisoned():
        got = kernel.bound(kernel.heuristic(call))(*call.values())
    assert torch.equal(got, torch.zeros(5, 8))


def test_zeros_do_not_wait_for_the_sort():
    """Where the sums' blocks are all there: as many as two a range."""
    indices, dout, weight = torch.tensor([3, 599, 600, 1200, 600]), torch.ones(5, 8), torch.zeros(1201, 8)
    with simulator.active("all"), poisoned():
        got = BACKWARD.kernel("cuda.v5_dealt").bound({"tokens": 4, "span": 16, "warps": 8})(dout, indices, weight, 599)
    assert torch.equal(got, BACKWARD.spec.reference(dout, indices, weight, 599))


@pytest.mark.parametrize("kernel", [k for k in BACKWARD.kernels if k.name.startswith("cuda.")], ids=lambda k: k.name)
def test_nothing_races_where_two_tokens_are_frequent(kernel):
    """Both have more than 32 spans, which a block adds together, one after the other."""
    indices = torch.cat([torch.full((700,), 2), torch.full((700,), 5), torch.randint(0, 9, (100,))])
    call = {"dout": torch.ones(1500, 8), "indices": indices, "weight": torch.zeros(9, 8), "padding_idx": -1}
    with simulator.active("all"):
        got = kernel.bound(kernel.heuristic(call))(*call.values())
    assert torch.equal(got, indices.bincount(minlength=9).float()[:, None].expand(9, 8))


def test_a_sort_by_ranges_says_where_it_ends():
    ranges = BACKWARD.kernel("cuda.v3_ranges")
    call = {
        "dout": torch.empty(2**20, 1, device="meta"),
        "indices": torch.empty(2**20, dtype=torch.int64, device="meta"),
        "weight": torch.empty(9, 1),
    }
    assert "there are 1048576 indices, and a block of its sort keeps track of 393216 at most" in ranges.refuse(call)
    few = {**call, "indices": torch.empty(2**17, dtype=torch.int64, device="meta"), "weight": torch.empty(2**20, 1, device="meta")}
    assert "would read 859832320 bytes of indices, more than the 134217728" in ranges.declines(few)


def test_a_deal_to_ranges_says_where_it_ends():
    kernel = BACKWARD.kernel("cuda.v5_dealt")

    def refusal(m, v):
        indices, weight = torch.empty(m, dtype=torch.int64, device="meta"), torch.empty(v, 1, device="meta")
        return kernel.refuse({"dout": torch.empty(m, 1, device="meta"), "indices": indices, "weight": weight})

    assert "3000000 rows are 3907 ranges, and a block deals its tokens to 3072 at most" in refusal(9, 3_000_000)
    assert "there are 1073741825 indices" in refusal(2**30 + 1, 9)


@pytest.mark.parametrize("name", FEW_ROWS)
def test_tables_of_sums_say_how_many_rows_they_take(name):
    call = {"dout": torch.empty(9, 8), "indices": torch.empty(9, dtype=torch.int64), "weight": torch.empty(513, 8)}
    assert "the weight has 513 rows, and a table of sums 512 at most" in BACKWARD.kernel(name).refuse(call)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [k for k in BACKWARD.kernels if k.name.startswith("cuda.")], ids=lambda k: k.name)
@pytest.mark.parametrize("v", [1, 256, 50304, 128256])
def test_rungs_agree_with_the_reference_on_a_gpu(kernel, v):
    """Small integers, so that every order of additions gives the same; all multiprocessors have ranges, and half of the tokens are one row's."""
    if v > 512 and kernel.name in FEW_ROWS:
        pytest.skip("it refuses")
    indices = torch.randint(0, v, (32768,), device="cuda")
    indices[::2] = v // 2
    dout, weight = torch.randint(-1, 2, (32768, 136), device="cuda").float(), torch.empty(v, 136, device="cuda")
    want = torch.zeros(v, 136, device="cuda").index_add_(0, indices, dout)
    for config in kernel.configs or ({},):
        assert torch.equal(kernel.bound(config)(dout, indices, weight, -1), want), config


@pytest.mark.gpu
@pytest.mark.parametrize("v", [255, 32768, 32769, 65535, 65536, 70001])
def test_narrow_keys_keep_every_row_apart(v):
    """Keys are sorted in 16 bits where they fit; an index outside must not come back as another row."""
    indices = torch.randint(0, v, (4096,), device="cuda")
    indices[:4] = torch.tensor([0, v - 1, v // 2, v - 1], device="cuda")
    weight, dout = torch.zeros(v, 8, device="cuda", requires_grad=True), torch.randn(4096, 8, device="cuda")
    want = torch.zeros(v, 8, device="cuda", dtype=torch.float64).index_add_(0, indices, dout.double())
    outside = torch.tensor([-1, v, v + 1, v + 65536, -65536 + v // 2], device="cuda")
    out = embedding(torch.cat([indices, outside]), weight)
    out.backward(torch.cat([dout, torch.ones(5, 8, device="cuda")]))
    torch.testing.assert_close(weight.grad.double(), want, rtol=1e-5, atol=1e-5)


def test_the_reference_adds_in_one_order_with_several_threads():
    """Or a run on a CPU, whose tied weight is rows that many tokens ask for, would not repeat."""
    gen, threads = torch.Generator().manual_seed(0), torch.get_num_threads()
    dout, indices = torch.randn(4096, 64, generator=gen), torch.randint(0, 7, (4096,), generator=gen)
    torch.set_num_threads(4)
    try:
        made = [reference.embedding_backward(dout, indices, torch.empty(7, 64), -1) for _ in range(20)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(made[0], other) for other in made)


@pytest.mark.parametrize("weight, said", [([[1.0]], "weight must be a tensor, got list"), (torch.tensor(1.0), "weight has 0 axes")])
def test_what_is_no_table_is_told_beside_a_padding_index_too(weight, said):
    with pytest.raises(ValueError, match=said):
        embedding(torch.tensor([0]), weight, 0)


def test_the_module_takes_pytorchs_arguments():
    table = torch.randn(5, 3)
    ours, theirs = (module.from_pretrained(table, padding_idx=-1) for module in (Embedding, torch.nn.Embedding))
    assert str(ours) == str(theirs) and not ours.weight.requires_grad and torch.equal(ours(torch.tensor([1])), table[1:2])
    assert str(Embedding(5, 3, None, None, 2.0, False, False)) == "Embedding(5, 3)"
    torch.nn.utils.skip_init(Embedding, 5, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", [64, 160, 208, 16384])
def test_rows_by_the_copy_engine(size, dtype, monkeypatch):
    """Strips of a row and a shorter last one, several rows a block and more than there are lanes, indices outside the weight, a weight with gaps."""
    n = 160 // dtype.itemsize
    weight = torch.randn(7, n + 16, generator=torch.Generator().manual_seed(1)).to(dtype)[:, :n]
    indices = torch.randint(-1, 8, (71,), generator=torch.Generator().manual_seed(2))
    indices[3] = 2**40
    monkeypatch.setattr(bulk_kernels, "check_indices", lambda *_: None)  # a GPU does not look
    with simulator.active("all"):
        out = OPS["embedding"].kernel("cuda.v6_bulk").bound({"bytes": size})(indices, weight, -1)
    inside = (indices >= 0) & (indices < 7)
    assert torch.equal(out[inside], weight[indices[inside]]) and out[~inside].isnan().all()
