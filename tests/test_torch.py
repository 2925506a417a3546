"""What PyTorch asks of an operator, for every operator: opcheck, one graph, both doors bitwise equal, and gradients that are gradients."""

import pytest
import torch

from rooftile.core.bind import letter
from rooftile.core.kernel import OPS as ALL
from rooftile.core.kernel import Op
from rooftile.workbench import check

OPS = {op.spec.name: op for op in check.all_ops()}
DIFFERENTIABLE = {n: op for n, op in OPS.items() if op.spec.gradient is not None}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def smoke(op: Op, device: str = "cpu"):
    for case in op.spec.cases:
        if "smoke" in case.use:
            yield case, op.spec.draw(case, 1, device)


def leaves(op: Op, call: dict) -> dict:
    return {n: call[n].requires_grad_() for n in op.spec.backward.leaves if call[n] is not None and call[n].is_floating_point()}


def results(out) -> list:
    return list(out) if isinstance(out, tuple) else [out]


def gradients(op: Op, run, call: dict) -> list:
    call = {n: v.detach().clone() if isinstance(v, torch.Tensor) else v for n, v in call.items()}
    wanted = leaves(op, call)
    out = results(run(*call.values()))
    taken = [out[i] for i in op.plan.takes]
    weights = [torch.arange(t.numel(), dtype=t.dtype, device=t.device).reshape(t.shape) % 7 - 3 for t in taken]
    return [*out, *torch.autograd.grad(taken, list(wanted.values()), weights)]


def same(a: list, b: list) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and torch.equal(torch.nan_to_num(x.detach().double()), torch.nan_to_num(y.detach().double()))
        for x, y in zip(a, b)
    )


@pytest.fixture
def eight_bits_compared(monkeypatch):
    """The check of a schema asks torch.allclose what was written, which knows no floats of 8 bits: there it asks of their values in 32."""
    known = torch.allclose

    def wide(x):
        return x.float() if x.is_floating_point() and x.itemsize == 1 else x

    monkeypatch.setattr(torch, "allclose", lambda a, b, **how: known(wide(a), wide(b), **how))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ALL)
def test_opcheck(name, device, eight_bits_compared):
    op = ALL[name]
    for case, call in smoke(op, device):
        if case.dtype == torch.float32:
            if op.plan is not None:
                leaves(op, call)
            torch.library.opcheck(op.entry, tuple(call.values()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_both_doors_are_bitwise_equal(name, device):
    op = DIFFERENTIABLE[name]
    for _, call in smoke(op, device):
        assert same(gradients(op, op, call), gradients(op, op.entry, call))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_compiles_as_one_graph(name, device):
    op = DIFFERENTIABLE[name]
    torch._dynamo.reset()
    compiled = torch.compile(lambda *args: op(*args), fullgraph=True, backend="aot_eager", dynamic=True)
    for case, call in smoke(op, device):
        if case.dtype == torch.float32:
            assert same(gradients(op, op, call), gradients(op, compiled, call))


def test_trailing_defaults_compile():
    """torch.library leaves off trailing arguments that have their default: here the bias that a head lacks."""
    op, x, weight = DIFFERENTIABLE["linear"], torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    compiled = torch.compile(lambda *args: op(*args), fullgraph=True, backend="aot_eager")
    eager, traced = (torch.autograd.grad(f(x, weight, None)[0].square().sum(), (x, weight)) for f in (op, compiled))
    assert same(list(eager), list(traced))


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("name", [n for n, op in DIFFERENTIABLE.items() if op.spec.backward.spared])
def test_what_is_spared_is_not_kept(name, second):
    """Of whom nobody wants the gradient. Seen red: a bias was kept that the backward pass does not read, and might not be written until then."""
    op = DIFFERENTIABLE[name]
    call = next(c for case, c in smoke(op) if case.dtype == torch.float32 and any(c[n] is not None for n in op.spec.backward.spared))
    spared = {n: call[n] for n in op.spec.backward.spared if call[n] is not None}
    wanted = list(leaves(op, {**call, **dict.fromkeys(spared)}).values())
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        out = results((op.entry if second else op)(*call.values()))[op.plan.takes[0]]
    assert kept and not {t.data_ptr() for t in spared.values()} & set(kept)
    for t in spared.values():
        t.zero_()
    torch.autograd.grad(out, wanted, torch.ones_like(out))


SHAPED = [n for n, op in DIFFERENTIABLE.items() if op.spec.backward.shaped]


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("name", SHAPED)
def test_what_has_a_shape_to_tell_is_not_kept(name, second):
    """Seen red: a sum kept all that it had summed until its backward pass, of which that reads nothing."""
    op = DIFFERENTIABLE[name]
    for call in (c for case, c in smoke(op) if case.dtype == torch.float32):
        wanted = leaves(op, call)
        door, shaped = op.entry if second else op, {call[n].untyped_storage().data_ptr() for n in op.spec.backward.shaped}
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t.untyped_storage().data_ptr()) or t, lambda t: t):
            out = results(door(*call.values()))[op.plan.takes[0]]
        assert not shaped & set(kept)
        up = torch.randn_like(out)
        got = torch.autograd.grad(out, list(wanted.values()), up)
        want = torch.autograd.grad(results(op.spec.reference(**call))[op.plan.takes[0]], list(wanted.values()), up)
        assert all(a.shape == b.shape and torch.allclose(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", SHAPED)
def test_who_reads_what_has_a_shape_to_tell_is_seen(name):
    op = DIFFERENTIABLE[name].backward
    drawn = [(n, op.spec.draw(c)[n]) for c in op.spec.cases if "smoke" in c.use for n in DIFFERENTIABLE[name].spec.backward.shaped]
    assert drawn and all(t.isnan().all() for _, t in drawn)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_backward_is_the_derivative(name):
    """The backward's reference against autograd of the forward's, both in float64: no formula is trusted for being written down."""
    op = DIFFERENTIABLE[name]
    compared = 0
    for case in op.spec.cases:
        if "check" not in case.use or case.dtype != torch.float32:
            continue
        call = check._upcast(op.spec.draw(case, 2))
        wanted = leaves(op, call)
        out = results(op.spec.reference(**call))
        gradient = op.spec.gradient
        upstream = {f"d{n}": torch.randn_like(out[i]) for i, n in enumerate(op.spec.returns) if i in op.plan.takes}
        truth = torch.autograd.grad([out[i] for i in op.plan.takes], list(wanted.values()), list(upstream.values()))
        known = {
            n: v.detach() if isinstance(v, torch.Tensor) else v for n, v in {**call, **dict(zip(op.spec.returns, out)), **upstream}.items()
        }
        made = results(gradient.reference(**{n: known[n] for n in gradient.signature.parameters}))
        ours = {n: g for names, g in zip(op.spec.backward.groups, made) for n in names}
        ours |= dict.fromkeys(op.spec.backward.passes, next(iter(upstream.values())))
        for n, t in zip(wanted, truth):
            torch.testing.assert_close(ours[n], t, rtol=1e-9, atol=1e-11)
            compared += 1
    assert compared


@pytest.mark.parametrize("name", OPS)
def test_autocast_and_export_take_the_second_door(name):
    op = OPS[name]
    _case, call = next(iter(smoke(op)))
    with torch.autocast("cpu", torch.bfloat16):
        op(*call.values())
    if op.spec.returns:

        class Module(torch.nn.Module):
            def forward(self, *args):
                return op(*args)

        program = torch.export.export(Module(), tuple(call.values()))
        assert any(f"rooftile.{name}" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("name", [n for n, op in ALL.items() if not op.spec.autocast])
def test_autocast_stays_outside(name):
    """Inside, references multiplied in 16 bits: attention_decode's lse came in them, and gradients of halves beside each other not at all."""
    op = ALL[name]
    for case, call in smoke(op):
        plain, cast = ({n: copied(v) for n, v in call.items()} for _ in range(2))
        expected = results(op(*plain.values()))
        with torch.autocast("cpu", torch.float16 if case.dtype == torch.bfloat16 else torch.bfloat16):
            assert same(written(op, cast, op(*cast.values())), written(op, plain, *expected)), case.id


def copied(value):
    return [copied(v) for v in value] if isinstance(value, list) else value.clone() if isinstance(value, torch.Tensor) else value


def written(op: Op, call: dict, *out) -> list:
    """Results, and what the call wrote over."""
    there = [call[n] for n, a in op.spec.args.items() if a.mutated and call[n] is not None]
    flat = [t for v in (*out, *there) for t in (v if isinstance(v, (list, tuple)) else [v])]
    return [t for t in flat if t is not None]


@pytest.mark.parametrize("name", [n for n, op in DIFFERENTIABLE.items() if not op.spec.backward.identity])
def test_a_backward_pass_inside_autocast_is_as_outside(name):
    op = DIFFERENTIABLE[name]
    case, call = next(iter(smoke(op)))

    def grads(inside: bool) -> list:
        wanted = leaves(op, mine := {n: copied(v) for n, v in call.items()})
        out = [results(op(*mine.values()))[i] for i in op.plan.takes]
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            return list(torch.autograd.grad(out, list(wanted.values()), [torch.ones_like(t) for t in out]))

    assert same(grads(True), grads(False)), case.id


@pytest.mark.parametrize("name", ALL)
def test_on_the_meta_device_results_are_the_fakes(name):
    """A call there computes nothing: a reference that looks at lengths found no numbers."""
    op = ALL[name]
    for case, call in smoke(op):
        bare = {n: on_meta(v) for n, v in call.items()}
        out, fake = (results(f) for f in (op(*bare.values()), op.spec.empty_returns(bare)))
        assert [None if t is None else (t.shape, t.stride(), t.dtype, t.device.type) for t in out] == [
            None if t is None else (t.shape, t.stride(), t.dtype, "meta") for t in fake
        ], case.id


def on_meta(value):
    return [on_meta(v) for v in value] if isinstance(value, list) else value.to("meta") if isinstance(value, torch.Tensor) else value


def longer(t: torch.Tensor) -> torch.Tensor:
    return t.new_zeros((*t.shape[:-1], t.shape[-1] + 1))


def wrong_calls(op: Op):
    """(call, words of the sentence): another dtype, another device, a letter that disagrees, a list that is too short."""
    spec, (_, call) = op.spec, next(iter(smoke(op)))
    one = {n: v for n, v in call.items() if isinstance(v, torch.Tensor)}
    lists = [n for n, a in spec.args.items() if a.many]
    io = next((n for n in one if spec.args[n].dtype == "io"), None) or next((n for n in one if "io" in spec.args[n].dtype), None)
    if io is not None:
        yield {**call, io: call[io].to(torch.int16)}, f"{io} is int16, takes {str(spec.dtypes[0]).removeprefix('torch.')}"
    if len(one) > 1:
        last = list(one)[-1]
        yield {**call, last: call[last].to("meta")}, f"device is meta in {last}, but cpu in"
    for n in lists[:1]:
        yield {**call, n: [t.to(torch.int16) for t in call[n]]}, f"{n} is int16, takes {str(spec.dtypes[0]).removeprefix('torch.')}"
    for n in [n for n in lists[1:] if call[n]]:
        yield {**call, n: call[n][:-1]}, f"the number of tensors P is {len(call[n]) - 1} in {n}, but {len(call[n])} in"
    seen: dict[str, str] = {}
    for n in one:
        letters = spec.args[n].dims.split()
        if letters and letters[-1] in seen and call[n].dim():
            size = call[n].shape[-1] - letter(letters[-1])[1]
            yield {**call, n: longer(call[n])}, rf"is \[?.*{size + 1}\]? in {n}, but \[?.*{size}\]? in"
        seen |= dict.fromkeys(letters, n)


@pytest.mark.parametrize("name", ALL)
def test_wrong_calls_are_sentences_with_both_numbers(name):
    calls = list(wrong_calls(ALL[name]))
    assert calls
    for call, words in calls:
        with pytest.raises(ValueError, match=words):
            ALL[name](*call.values())


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
def test_cuda_graph_side_stream_and_second_gpu(name):
    op = OPS[name]
    for _case, call in smoke(op, "cuda"):
        expected = check.outcome(op.spec, op.launch, call)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            aside = check.outcome(op.spec, op.launch, call)
        stream.synchronize()
        assert same(expected, aside)
        if not any(a.mutated for a in op.spec.args.values()):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = results(op.launch(*call.values()))
            for t in captured:
                t.zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert same(expected, captured)
        if torch.cuda.device_count() > 1:
            there = {
                n: [t.to("cuda:1") for t in v] if isinstance(v, list) else v.to("cuda:1") if isinstance(v, torch.Tensor) else v
                for n, v in call.items()
            }
            assert torch.cuda.current_device() == 0
            assert same([t.cpu() for t in expected], [t.cpu() for t in check.outcome(op.spec, op.launch, there)])
