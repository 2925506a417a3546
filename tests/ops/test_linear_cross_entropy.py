"""What the grid cannot say of linear_cross_entropy: the grid itself on the chunked kernels, planted chunks, memory, arbitrary reductions."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import processes
from rooftile.core.kernel import OPS
from rooftile.ops import LinearCrossEntropyLoss, cross_entropy, linear_cross_entropy
from rooftile.ops.linear_cross_entropy import api
from rooftile.ops.linear_cross_entropy import chunked_kernels as chunked
from rooftile.workbench import check
from rooftile.workbench.gauge import Gauge

NAMES = ("linear_cross_entropy", "linear_cross_entropy_ahead", "linear_cross_entropy_frozen")
BOTH = [f"{n}{b}" for n in NAMES for b in ("", "_backward")]


@pytest.mark.parametrize("name", BOTH)
def test_the_gate_on_the_chunked_kernel(name):
    points = [p for p in check.grid([OPS[name]]) if p.kernel.name == "chunked"]
    verdicts = check.run_points(points, "cpu")
    assert len(verdicts) > 20 and [v for v in verdicts if v.status != "passed"] == []


def _skipped(add):
    return lambda self, rows, g: add(self, rows, g if rows.start != 6 else g * 0)


def _last_only(add):
    def plant(self, rows, g):
        self.dweight.zero_()
        add(self, rows, g)

    return plant


def _unsmoothed(launch):
    return lambda *call: launch(*call[:-3], 0.0, *call[-2:])


def _counted(reduced):
    return lambda row, target, ignore_index, reduction: reduced(row, target, -12345, reduction)


PLANTS = {  # what is spoilt, how, and in whose eyes
    "a chunk skipped": (chunked._Gradients, "add", _skipped, ("linear_cross_entropy_backward", "linear_cross_entropy_ahead", "linear_cross_entropy_frozen")),
    "the last chunk's weight gradient": (chunked._Gradients, "add", _last_only, ("linear_cross_entropy_backward", "linear_cross_entropy_ahead")),
    "smoothing dropped from the gradient": (OPS["cross_entropy_overwrite"], "launch", _unsmoothed, ("linear_cross_entropy_backward",)),
    "smoothing dropped": (OPS["cross_entropy_ahead"], "launch", _unsmoothed, NAMES[1:]),
    "padding counted": (chunked, "_reduced", _counted, NAMES),
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_chunks_are_refused(plant, monkeypatch):
    where, attribute, wrong, ops = PLANTS[plant]
    monkeypatch.setattr(where, attribute, wrong(getattr(where, attribute)))
    for name in ops:
        cases = [c for c in OPS[name].spec.cases if c.dims["M"] == 9 and c.params["ignore_index"] == 0]
        assert len(cases) == 1
        verdict = check.Problem(OPS[name].spec, cases[0], "normal", "cpu").judge(OPS[name].kernel("chunked"))
        assert verdict.status == "failed" and "times the allowed" in verdict.message, (name, verdict)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_scale_of_narrow_gradients_is_not_narrowed(dtype, monkeypatch):
    """A number without axes takes the other factor's dtype on a GPU, and 1/3 of 16 bits would scale every row."""
    taken = []
    monkeypatch.setattr(chunked.torch, "mul", lambda a, b, out: taken.append(torch.result_type(a, b)) or out)
    x, w = torch.randn(4, 8, dtype=dtype), torch.randn(6, 8, dtype=dtype)
    chunked.ahead_backward(torch.ones(()), w, None, torch.tensor(3.0), x, w.float(), x.new_empty(0))
    assert taken == [torch.float32, torch.float32]


class Largest(TorchDispatchMode):
    """The most elements of any tensor that is made."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, torch.Tensor):
                self.elements = max(self.elements, t.numel(), t.untyped_storage().nbytes() // t.itemsize)
        return out


def largest(run, call) -> int:
    with torch.no_grad(), Largest() as seen:
        run(*call)
    return seen.elements


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_logits_are_never_whole(dtype):
    m, k, v, chunk = 96, 16, 200, 8
    x, w, b = torch.randn(m, k, dtype=dtype), torch.randn(v, k, dtype=dtype), torch.randn(v, dtype=dtype)
    call = (x, w, torch.randint(0, v, (m,)), b, -100, 0.1, 0.01, 5.0)
    for name in NAMES:
        op, sums = OPS[name], ("float32",) * (name == NAMES[1])
        assert largest(op.launch, (*call, "mean", chunk, *sums)) == v * k  # the weight, or its gradient; a chunk's logits are half of it
        assert largest(op.spec.reference, (*call, "mean", chunk)) >= m * v
    back = (torch.randn(m), *call[:4], torch.ones(()), *call[4:], chunk)
    assert largest(OPS["linear_cross_entropy"].backward.launch, back) == v * k
    assert largest(OPS["linear_cross_entropy_backward"].spec.reference, back) >= m * v


@pytest.mark.parametrize(
    "case",
    [
        (8192, 4096, 128256, 2048),
        (16384, 768, 50304, 2048),
        (32768, 4096, 32000, 4096),
        (700, 64, 1000, 700),
    ],
)
def test_rows_of_a_chunk(case):
    m, k, v, rows = case
    assert chunked.chunk_rows(m, k, v) == rows


@pytest.mark.parametrize(
    "m, k, chunk, rows", [(5000, 2500, None, 5000), (5001, 2500, None, 1792), (5000, 2500, 4992, 4992), (50, 4, 50, 50), (51, 4, 50, 50)]
)
def test_who_makes_all_gradients_at_once(m, k, chunk, rows, monkeypatch):
    """bfloat16 rows up to twice as many as columns, or those of a chunk that has all: logits of 2 M V bytes and no sums of 4 V K."""
    asked, begin = [], chunked._Gradients.__init__
    monkeypatch.setattr(chunked, "_chunks", lambda x, weight, target, bias, ignore_index, chunk: asked.append(chunk) or [])
    monkeypatch.setattr(chunked._Gradients, "__init__", lambda self, *of: asked.append(of[-1]) or begin(self, *of))
    x, w, target, one = (
        torch.ones(m, k, dtype=torch.bfloat16),
        torch.ones(9000, k, dtype=torch.bfloat16),
        torch.zeros(m, dtype=torch.int64),
        torch.ones(()),
    )
    chunked.backward(one, x, w, target, None, one, -100, 0.0, 0.0, 0.0, chunk)
    assert asked == [torch.bfloat16 if rows == m else torch.float32, rows]
    assert chunked.all_at_once(x, w, chunk) == (rows == m)
    for others in ((x, w.float()), (x.half(), w.half()), (x.float(), w.float())):
        assert not chunked.all_at_once(*others, chunk)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_all_at_once_is_what_chunks_make_rounded_once_more(reduction):
    x, w, b, target = leaves(torch.bfloat16, 30, 16, 300)
    upstream = torch.randn(30 if reduction == "none" else ())

    def gradients(chunk):
        return torch.autograd.grad(linear_cross_entropy(x, w, target, b, reduction=reduction, chunk=chunk), (x, w, b), upstream)

    whole, chunks = gradients(None), gradients(8)
    assert chunked.all_at_once(x, w, None) and all(g.dtype == torch.bfloat16 for g in whole)
    for a, e in zip(whole, chunks):
        torch.testing.assert_close(a, e, rtol=2.0**-7, atol=2.0**-9 * e.abs().max().item())


def test_chunks_with_gradients_have_as_many_rows_as_a_weight_has_columns():
    def rows(m, k, v, chunk=None):
        return chunked._with_gradients(torch.empty(m, k, device="meta"), torch.empty(v, k, device="meta"), chunk)

    assert rows(8193, 4096, 128256) == 2816 and chunked.chunk_rows(8193, 4096, 128256) == 1664
    assert rows(16384, 768, 50304) == 2048 and rows(8193, 4096, 128256, 640) == 640


@pytest.mark.parametrize("m, chunk, sums", [(32, None, "bfloat16"), (33, None, "float32"), (33, 33, "bfloat16"), (33, 32, "float32")])
def test_who_asks_for_sums_in_16_bits(m, chunk, sums, monkeypatch):
    asked, ahead = [], api._ahead
    monkeypatch.setattr(api, "_ahead", lambda *call: asked.append(call[-2:]) or ahead(*call))
    x, w, b, target = leaves(torch.bfloat16, m, 16, 300)
    linear_cross_entropy(x, w, target, b, chunk=chunk)
    assert asked == [(chunk, sums)]


def test_sums_in_16_bits_are_of_all_rows_at_once():
    x, w, _, target = leaves(torch.bfloat16)
    call = (target, None, -100, 0.0, 0.0, 0.0, "mean")
    ahead = OPS["linear_cross_entropy_ahead"]
    with pytest.raises(ValueError, match="sums is bfloat16, for bfloat16 of 14 rows at once; x is bfloat16, a chunk 13 rows"):
        ahead(x, w, *call, 13, "bfloat16")
    with pytest.raises(ValueError, match="sums is bfloat16, for bfloat16 of 14 rows at once; x is float16, a chunk 14 rows"):
        ahead(x.half(), w.half(), *call, None, "bfloat16")
    with pytest.raises(ValueError, match="sums is 'float16', it takes 'float32' and 'bfloat16'"):
        ahead(x, w, *call, None, "float16")
    for chunk in (None, 14, 20):
        assert ahead(x, w, *call, chunk, "bfloat16")[3].dtype == torch.bfloat16


@pytest.mark.parametrize("m", [0, 1, 127, 128, 1025, 2049, 16385])
def test_chunks_are_even_and_cover_the_rows(m):
    size = chunked.chunk_rows(m, 768, 50304)
    assert 1 <= size <= max(1, m) and (size == m or size % 128 == 0 or m == 0) and size <= 2048 + 128


def leaves(dtype=torch.float32, m=14, k=16, v=37):
    gen = torch.Generator().manual_seed(0)
    made = [torch.randn(*s, generator=gen).div(k**0.25).to(dtype).requires_grad_() for s in ((m, k), (v, k), (v,))]
    target = torch.randint(0, v, (m,), generator=gen)
    target[2::5] = -100
    return *made, target


def theirs(x, w, b, target, reduction, smoothing=0.0):
    return F.cross_entropy(F.linear(x, w, b).float(), target, reduction=reduction, label_smoothing=smoothing)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_against_pytorch_with_arbitrary_output_gradients(reduction, smoothing):
    x, w, b, target = leaves()
    ours = linear_cross_entropy(x, w, target, b, label_smoothing=smoothing, reduction=reduction, chunk=4)
    wanted = theirs(x, w, b, target, reduction, smoothing)
    torch.testing.assert_close(ours, wanted)
    upstream = torch.randn(wanted.shape)
    for a, e in zip(torch.autograd.grad(ours, (x, w, b), upstream), torch.autograd.grad(wanted, (x, w, b), upstream)):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_many_chunks_of_bfloat16_are_no_worse_than_pytorch(reduction):
    """32 chunks: a weight gradient added up in bfloat16 would be."""
    x, w, b, target = leaves(torch.bfloat16, 256, 64, 500)
    upstream = torch.randn(256 if reduction == "none" else ())

    def gradients(run, dtype):
        inputs = [t.detach().to(dtype).requires_grad_() for t in (x, w, b)]
        loss = run(*inputs)
        return [loss, *torch.autograd.grad(loss, inputs, upstream.to(loss.dtype))]

    exact = gradients(lambda *t: F.cross_entropy(F.linear(*t), target, reduction=reduction), torch.float64)
    own = gradients(lambda *t: theirs(*t, target, reduction), torch.bfloat16)
    ours = gradients(lambda x, w, b: linear_cross_entropy(x, w, target, b, reduction=reduction, chunk=8), torch.bfloat16)
    for a, p, e in zip(ours, own, exact):
        assert (a.double() - e).norm() <= 2 * (p.double() - e).norm() + 1e-6 * e.norm()


def test_leading_axes_strides_and_a_parameter_of_another_dtype():
    x = torch.randn(5, 3, 16).transpose(0, 1).bfloat16().requires_grad_()
    w = torch.randn(16, 37).t().requires_grad_()
    target = torch.randint(0, 37, (3, 5))
    for reduction in ("mean", "none"):
        loss = linear_cross_entropy(x, w, target, reduction=reduction, chunk=4)
        wanted = cross_entropy(F.linear(x, w.bfloat16()).flatten(0, 1), target.flatten(), reduction=reduction)
        assert loss.shape == (target.shape if reduction == "none" else ()) and loss.dtype == torch.float32
        torch.testing.assert_close(loss.flatten(), wanted.flatten(), rtol=1e-3, atol=1e-3)
        for a, e in zip(torch.autograd.grad(loss.sum(), (x, w)), torch.autograd.grad(wanted.sum(), (x, w))):
            assert a.dtype == e.dtype and (a - e).norm() < 1e-2 * e.norm()


def test_nothing_but_padding_and_nothing():
    x, w, b, target = leaves()
    for t, rows in ((torch.full_like(target, -100), 14), (target[:0], 0)):
        some = x[:rows]
        assert linear_cross_entropy(some, w, t, b, chunk=4).isnan()
        for reduction in ("mean", "sum", "none"):
            loss = linear_cross_entropy(some, w, t, b, reduction=reduction, chunk=4)
            assert reduction == "mean" or loss.sum() == 0
            for g in torch.autograd.grad(loss.sum(), (x, w, b)):
                assert torch.equal(g, torch.zeros_like(g))


def test_a_mean_in_float16_keeps_gradients_that_its_rows_could_not_say():
    """p / M is 1e-6 here, 16 of float16's steps: divided by M before it is rounded, what a class gets that is no row's target would be off by 0.4 %."""
    x, w, _, _ = leaves(torch.float16, 256, 16, 4000)
    target = torch.randint(0, 2000, (256,))
    (exact,) = torch.autograd.grad(theirs(x.float(), w.float(), None, target, "mean") * 2.0**16, w)
    (made,) = torch.autograd.grad(linear_cross_entropy(x, w, target, chunk=64) * 2.0**16, w)
    assert (made.float() - exact.float())[2000:].norm() < 2e-3 * exact.float()[2000:].norm()


def test_without_a_gradient_none_is_made_and_a_second_backward_is_the_first():
    x, w, b, target = leaves()
    with torch.no_grad():
        plain = linear_cross_entropy(x, w, target, b, chunk=4)
    loss = linear_cross_entropy(x, w, target, b, chunk=4)
    assert not plain.requires_grad and torch.equal(plain, loss)
    first = torch.autograd.grad(loss, (x, w, b), retain_graph=True)
    assert all(torch.equal(a, e) for a, e in zip(first, torch.autograd.grad(loss, (x, w, b))))
    loss = linear_cross_entropy(x, w.detach(), target, b.detach(), chunk=4)
    assert torch.equal(torch.autograd.grad(loss, x, torch.tensor(2.0))[0], 2 * first[0])


@pytest.mark.parametrize("who, name", [("x", "frozen"), ("w", "ahead"), ("b", "ahead"), ("xw", "ahead"), ("xb", "ahead"), ("", None)])
def test_a_head_that_is_frozen_gets_no_gradient_made(who, name, monkeypatch):
    """LoRA's: a product of three less, and no tensor as large as the weight."""
    asked, products, product = [], [], chunked.product
    monkeypatch.setattr(chunked, "product", lambda *of, out, **more: products.append(tuple(out.shape)) or product(*of, out=out, **more))
    for kind in ("ahead", "frozen"):
        op = OPS[f"linear_cross_entropy_{kind}"]
        monkeypatch.setattr(api, f"_{kind}", lambda *call, op=op, kind=kind: asked.append(kind) or op(*call))
    x, w, b, target = leaves(m=40, v=200)
    given = {"x": x, "w": w, "b": b}
    x, w, b = (t.detach().requires_grad_(n in who) for n, t in given.items())
    loss = linear_cross_entropy(x, w, target, b, chunk=8)
    assert asked == [name] * (name is not None) and loss.requires_grad == bool(who)
    assert sorted(set(products)) == [(8, 16)] * (who != "") + [(8, 200)] + [(200, 16)] * (name == "ahead")
    if who == "x":
        wanted = torch.autograd.grad(theirs(x, w, b, target, "mean"), x)
        torch.testing.assert_close(torch.autograd.grad(loss, x), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_function_compiles_as_one_graph(reduction):
    x, w, b, target = leaves()
    torch._dynamo.reset()

    def run(x, w, b):
        return linear_cross_entropy(x, w, target, b, reduction=reduction, chunk=4).sum()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for a, e in zip(torch.autograd.grad(compiled(x, w, b), (x, w, b)), torch.autograd.grad(run(x, w, b), (x, w, b))):
        assert torch.equal(a, e)


def test_module_is_a_linear_layer_with_its_loss():
    torch.manual_seed(0)
    ours = LinearCrossEntropyLoss(16, 37, bias=True, ignore_index=3, label_smoothing=0.1, reduction="sum", chunk=4)
    head = torch.nn.Linear(16, 37)
    head.load_state_dict(ours.state_dict())
    x, target = torch.randn(2, 5, 16), torch.randint(0, 37, (2, 5))
    wanted = F.cross_entropy(head(x).flatten(0, 1), target.flatten(), ignore_index=3, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(ours(x, target), wanted)
    assert "reduction='sum'" in repr(ours) and "out_features=37" in repr(ours)


def test_messages_have_both_numbers():
    x, w, b, target = leaves()
    with pytest.raises(ValueError, match=r"target\[9\] is 37, but the logits have 37 classes"):  # counted over all rows, not in its chunk
        linear_cross_entropy(x, w, torch.where(torch.arange(14) == 9, 37, target), chunk=4)
    with pytest.raises(ValueError, match=r"leading shape is \[13\] in target, but \[14\] in x"):
        linear_cross_entropy(x, w, target[1:])
    with pytest.raises(ValueError, match="K is 15 in weight, but 16 in x"):
        linear_cross_entropy(x, w[:, 1:], target)
    with pytest.raises(ValueError, match="V is 36 in bias, but 37 in weight"):
        linear_cross_entropy(x, w, target, b[1:])
    with pytest.raises(ValueError, match="chunk is 0 rows, it must be 1 or more"):
        linear_cross_entropy(x, w, target, chunk=0)
    with pytest.raises(ValueError, match="reduction is 'avg'"):
        linear_cross_entropy(x, w, target, reduction="avg")
    with pytest.raises(ValueError, match="0 axes"):
        linear_cross_entropy(torch.ones(()), w, target)


INTERPRETED = """
import torch
from rooftile.workbench import interpreter, check
from rooftile.core.kernel import OPS
import rooftile.ops
for name in ("linear_cross_entropy", "linear_cross_entropy_backward", "linear_cross_entropy_ahead"):
    spec = OPS[name].spec
    call = spec.draw(next(c for c in spec.cases if "smoke" in c.use))
    with check.poisoned():
        made = check.outcome(spec, OPS[name].kernel("chunked").run, call)
    for a, e in zip(made, check.outcome(spec, spec.reference, call)):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)
assert OPS["cross_entropy"].choose({"logits": call["x"], **{n: call[n] for n in OPS["cross_entropy"].names[1:]}}).kernel.name == "triton"
"""


def test_on_cross_entropys_triton_kernels_in_the_interpreter():
    run = processes.run(code=INTERPRETED, TRITON_INTERPRET="1")
    assert run.returncode == 0, run.stderr[-2000:]


def test_a_float32_result_made_of_bfloat16_has_no_digits_to_lose():
    """The gate's control "lower precision" must go where PyTorch's own result is no better, and must stay where it is."""
    truth = torch.randn(8, 64, dtype=torch.float64)
    tolerance = OPS["linear_cross_entropy"].spec.tolerance
    for own, stays in ((truth.float(), True), (truth.bfloat16().float(), False)):
        assert ("lower precision" in Gauge(truth, own, [truth], 1.0, tolerance, False).controls()) == stays


def test_what_stands_behind_a_padded_row_is_zero(monkeypatch):
    """A CPU's bfloat16 products (AMX) read it: a NaN that lay there would come through."""
    seen, product = [], chunked.product

    def watched(left, right, bias=None, *, out=None, **more):
        if out is not None and out.shape[1] == 61:
            seen.append(out._base[:, 61:].clone())
        return product(left, right, bias, out=out, **more)

    monkeypatch.setattr(chunked, "product", watched)
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *size, **more: empty(self, *size, **more).fill_(float("nan")))
    x, weight = torch.ones(5, 8), torch.ones(61, 8)
    list(chunked._chunks(x, weight, torch.zeros(5, dtype=torch.int64), None, -100, 2))
    assert len(seen) == 3 and all(t.shape[1] == 3 and not t.any() for t in seen)


def test_weights_that_are_mapped_over_get_their_gradients():
    """In vmap a tensor never says that it requires one: x, which is not mapped over, got the only gradient."""
    x, weights, biases = (torch.randn(s, requires_grad=True) for s in ((4, 8), (3, 5, 8), (3, 5)))
    target = torch.tensor([0, 1, 2, 4])
    for given in ((weights,), (weights, biases), (biases,)):

        def loss(*mapped, given=given):
            weight, bias = mapped if len(mapped) == 2 else (*mapped, None) if given[0] is weights else (weights[0], *mapped)
            return linear_cross_entropy(x, weight, target, bias)

        ours = torch.autograd.grad(torch.vmap(loss)(*given).sum(), (x, *given))
        theirs = torch.autograd.grad(sum(loss(*mapped) for mapped in zip(*given)), (x, *given))
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a, b)
