"""Who is chosen: forces, refusals, determinism, and a memory that stays bounded."""

import re
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch.autograd import forward_ad
from triton import OutOfResources

import rooftile
from rooftile.core import kernel as k
from rooftile.core.bind import device_of
from rooftile.core.kernel import OPS, Kernel, Refused, forced
from rooftile.core.known import MISS
from rooftile.workbench import check as gate

X = torch.randn(3, 5)


def test_a_forced_kernel_that_refuses_is_an_error_with_its_sentence():
    with (
        forced("softmax", "triton"),
        pytest.raises(Refused, match="the forced kernel triton refuses: it needs a CUDA device, the tensor is on cpu"),
    ):
        rooftile.softmax(X)
    rooftile.softmax(X)  # outside, the choice is free again


def test_a_force_reaches_the_backward():
    x = X.clone().requires_grad_()
    y = rooftile.softmax(x)
    with forced("softmax", "triton"), pytest.raises(Refused, match="softmax_backward"):
        y.sum().backward()


def test_a_wrong_force_suggests_the_right_name():
    with pytest.raises(ValueError, match=r"did you mean triton\?"), forced("softmax", "tritn"):
        pass


def test_a_wrong_rank_suggests_the_right_name():
    """Seen red: a KeyError, while rooftile is imported."""
    with pytest.raises(ValueError, match=r"no kernel to be ranked is called 'triton.onlin'; did you mean triton.online\?"):
        k.ranked(OPS["softmax"].kernels, "triton.onlin")


def test_a_kernel_never_sees_what_functionalize_wraps(monkeypatch):
    """Seen red: of such a tensor the address is 0, and a kernel would have read there."""
    op, seen = OPS["gelu"], list[int]()

    def run(x, approximate):
        seen.append(x.data_ptr())
        return op.spec.reference(x, approximate)

    monkeypatch.setattr(op, "kernels", (Kernel("reads memory", run), *op.kernels))
    op.forget()
    try:
        assert torch.equal(rooftile.gelu(X), torch.func.functionalize(rooftile.gelu)(X))
        assert all(seen) and len(seen) == 2
    finally:
        op.forget()
    heads, ends = torch.randn(6, 2, 16), torch.tensor([0, 2, 6], dtype=torch.int32)
    varlen = partial(rooftile.attention_varlen, cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=4, max_seqlen_k=4)
    assert torch.equal(torch.func.functionalize(varlen)(heads, heads, heads), varlen(heads, heads, heads))


def test_a_kernel_that_varies_is_ruled_out_by_determinism(monkeypatch):
    op = OPS["softmax"]
    free = Kernel("free", op.spec.reference, "", varies="the order of a sum is left to chance")
    monkeypatch.setattr(op, "kernels", (free, *op.kernels))
    assert op.choose({"x": X}).kernel is free
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    choice = op.choose({"x": X})
    assert choice.kernel.name == "reference" and "left to chance" in dict(choice.refused)["free"]
    with forced("softmax", "free"), pytest.raises(Refused, match="left to chance"):
        rooftile.softmax(X + 1)


def test_who_declines_is_passed_over_but_for_the_reference(monkeypatch):
    op = OPS["softmax"]
    modest = [Kernel(n, op.spec.reference, "", declines=lambda call: "another is sooner done") for n in ("modest", "shy")]
    willing = Kernel("willing", op.spec.reference, "")
    monkeypatch.setattr(op, "kernels", (*modest, willing, op.kernels[-1]))
    choice = op.choose({"x": X})
    assert choice.kernel is willing and choice.refused == (("modest", "another is sooner done"), ("shy", "another is sooner done"))
    monkeypatch.setattr(op, "kernels", (*modest, op.kernels[-1]))
    assert op.choose({"x": X}).kernel is modest[0]


@pytest.mark.parametrize("door", ["refuse", "declines"])
@pytest.mark.parametrize("answer", [False, True, "", 0])
def test_who_answers_with_a_truth_value_is_told(door, answer, monkeypatch):
    """Seen red: a kernel that refused with False was judged by no gate, and chosen."""
    op = OPS["softmax"]
    monkeypatch.setattr(op, "kernels", (Kernel("hasty", op.spec.reference, **{door: lambda call: answer}), op.kernels[-1]))
    with pytest.raises(
        ValueError, match=f"{door} of hasty of rooftile.ops.softmax.reference answers {answer!r}: it must be None or a sentence"
    ):
        op.choose({"x": X})


def test_the_gate_takes_no_truth_value_for_a_refusal(monkeypatch):
    op = OPS["reduce_sum"]
    hasty = Kernel("hasty", op.spec.reference, refuse=lambda call: False)
    case = next(c for c in op.spec.cases if "smoke" in c.use)
    with pytest.raises(ValueError, match="refuse of hasty"):
        list(gate.run_points([gate.Point(op, hasty, case)], "cpu"))


def test_two_kernels_of_a_name_are_refused():
    """Seen red: a rung that was copied and not renamed. `bench` judged and timed one of the two, and the other was chosen."""
    twin = Kernel("twin", OPS["softmax"].spec.reference)
    with pytest.raises(ValueError, match="softmax has 2 kernels called 'twin': verdicts and records tell kernels apart by name"):
        k.Op(OPS["softmax"].spec, twin, twin)


def room_for(most, ran, error):
    """A kernel that asks for as much as its config says, of a device that has `most`."""

    def run(x, *, config):
        ran.append(config["kib"])
        if config["kib"] > most:
            raise error(config["kib"] * 1024, most * 1024, "shared memory")
        return rooftile.softmax(x)

    return run


def too_much(asked, there, what):
    return k.TooLarge(f"it asks for {asked} bytes of {what}, there are {there}")


@pytest.mark.parametrize("error", [too_much, OutOfResources])
def test_where_blocks_have_less_memory_a_config_that_fits_runs(error, monkeypatch):
    """Seen red: configs are an H200's, and where a block has 99 KiB it ended in an error."""
    op, ran = OPS["log_softmax"], []
    kernels = {
        name: Kernel(name, room_for(99, ran, error), configs=tuple({"kib": n} for n in sizes))
        for name, sizes in {"wide": (227, 163), "narrow": (128, 99, 48)}.items()
    }
    monkeypatch.setattr(op, "kernels", (*kernels.values(), op.kernels[-1]))
    op.forget()
    try:
        assert op.launch(X).equal(rooftile.softmax(X)) and ran == [227, 163, 128, 99]
        op.launch(X.clone())
        assert ran[4:] == [99]  # who fits is remembered
        choice = op.choose({"x": X}, [("wide", {"kib": 227}), ("wide", {"kib": 163})])
        assert choice.config == {"kib": 128} and choice.refused[0][1].startswith("with each of its configs a block asks for more")
        monkeypatch.setattr(op, "kernels", (kernels["wide"], op.kernels[-1]))
        op.forget()
        assert op.launch(X).equal(torch.log_softmax(X, -1))  # nobody fits: the reference
        op.forget()
        with forced("log_softmax", "wide"), pytest.raises(tuple(k.too_large), match=str(227 * 1024)):
            op.launch(X)
    finally:
        op.forget()


def test_what_is_written_in_place_is_not_begun_twice(monkeypatch):
    op = OPS["residual_add_overwrite"]

    def run(x, y, *, config):
        x += y  # by the first of two launches
        raise k.TooLarge("it asks for 131072 bytes, there are 101376")

    monkeypatch.setattr(op, "kernels", (Kernel("two launches", run, configs=({"kib": 128}, {"kib": 64})), op.kernels[-1]))
    op.forget()
    x, y = torch.zeros(2, 4), torch.ones(2, 4)
    try:
        with pytest.raises(k.TooLarge, match="131072 bytes, there are 101376"):
            op.launch(x, y)
        assert x.eq(1).all()
    finally:
        op.forget()


def test_a_kernel_meets_no_sign_that_is_not_in_memory(monkeypatch):
    """Of z.conj().imag memory has the other sign. Seen red: kernels of a GPU would have read it."""
    op, seen = OPS["softmax"], []

    def run(x):
        seen.append(x.is_neg())
        return op.spec.reference(x)

    monkeypatch.setattr(op, "kernels", (Kernel("reads memory", run), *op.kernels))
    op.forget()
    try:
        z = torch.randn(3, 5, dtype=torch.complex64)
        plain, turned = z.imag, z.conj().imag  # the same memory, shape and strides
        assert turned.is_neg()
        for x in (plain, turned, turned, plain):
            torch.testing.assert_close(rooftile.softmax(x), torch.softmax(x, -1))
        assert seen == [False] * 4
    finally:
        op.forget()
    with pytest.raises(
        ValueError, match=r"rope_overwrite: q is a view of numbers that stand in memory with the other sign.*cannot be written in place"
    ):
        rooftile.rope(torch.randn(1, 2, 3, 4, dtype=torch.complex64).conj().imag, None, *rooftile.rope_table(3, 4), inplace=True)
    params = [torch.randn(2, 3), torch.randn(2, 3, dtype=torch.complex64).conj().imag]
    assert float(rooftile.grad_norm(params)) == pytest.approx(float(sum(p.square().sum() for p in params)) ** 0.5)


def test_what_only_a_gradient_reads_is_made_where_one_is_wanted(monkeypatch):
    op = OPS["layernorm"]
    asked = []

    def run(*args, save=True):
        asked.append(save)
        made = op.spec.reference(*args)
        return made if save else (made[0], None, None)

    monkeypatch.setattr(op, "kernels", (Kernel("lean", run), *op.kernels))
    op.forget()
    try:
        x, weight = X.clone(), torch.ones(5, requires_grad=True)
        rooftile.layernorm(x)
        with torch.no_grad():
            rooftile.layernorm(x, weight)
        assert asked == [False, False]
        rooftile.layernorm(x, weight).sum().backward()
        assert weight.grad is not None and asked == [False, False, True]
        torch.ops.rooftile.layernorm(x, None, None, 1e-5)  # a schema promises all results
        assert asked[3:] == [True]
    finally:
        op.forget()


def test_what_equals_a_remembered_parameter_but_is_of_another_type_is_refused():
    """1 == 1.0 == True, and their hashes are one."""
    q, x, target = torch.randn(1, 4, 2, 16), torch.randn(4, 8), torch.tensor([0, 1, 2, 3])
    for call, taken, refused in (
        (lambda causal: rooftile.attention(q, q, q, causal=causal), True, 1),
        (lambda causal: rooftile.softmax(x, causal=causal), True, 1.0),
        (lambda ignored: rooftile.cross_entropy(x, target, ignore_index=ignored), 3, 3.0),
        (lambda chunk: rooftile.linear_cross_entropy(x, x, target, chunk=chunk), 2, 2.0),
        (lambda left: rooftile.attention(q, q, q, window=(left, 0)), 2, 2.0),
    ):
        call(taken)
        with pytest.raises(ValueError, match=f"is {refused}, takes"):
            call(refused)


def test_lengths_that_never_repeat_do_not_fill_the_memory():
    op = OPS["gelu"]
    op.forget()
    op._memo.update({(i,): op.spec.reference for i in range(8192)})
    rooftile.gelu(X)
    assert len(op._memo) == 1


def test_nearest_without_a_neighbour():
    with pytest.raises(ValueError, match=r"no thing is called 'zzz'\. There are 1: softmax"):
        k.nearest("zzz", ["softmax"], "thing")


@pytest.fixture
def past_autograd(monkeypatch):
    """Of operators kernels as on a GPU: they write to addresses, and autograd sees nothing of it."""

    def put(*ops: k.Op) -> None:
        for op in ops:
            monkeypatch.setattr(op, "kernels", (Kernel("planted", partial(_unseen, op)), *op.kernels))
            op.forget()

    yield put
    k._forget_all()


def _unseen(op, *args):
    written = [i for i, n in enumerate(op.names) if n in op.spec.args and op.spec.args[n].mutated]
    copies = [
        a.detach().clone() if isinstance(a, torch.Tensor) else [t.detach().clone() for t in a] if isinstance(a, list) else a for a in args
    ]
    made = op.spec.reference(*copies)
    for i in written:
        for t, c in zip(*([x] if isinstance(x, torch.Tensor) else x for x in (args[i], copies[i]))):
            t.detach().numpy()[...] = c.detach().numpy()
    return tuple(t.detach() for t in made) if isinstance(made, tuple) else None if made is None else made.detach()


ONES = torch.ones(2, 8)
TABLE, TURNS = rooftile.rope_table(2, 8), rooftile.rope_table(4, 8)
WRITES = {
    "adamw": lambda t: rooftile.adamw([t], [ONES], [ONES.clone()], [ONES.clone()], torch.tensor([[1.0, 0.0, 1.0, 1.0]])),
    "concat_kv": lambda t: rooftile.concat_kv(t[None, None], ONES.clone()[None, None], *[ONES[None, None, :1]] * 2, torch.tensor([0])),
    "residual_add_overwrite": lambda t: rooftile.residual_add(ONES, t, inplace=True),
    "rope_overwrite": lambda t: rooftile.rope(t[None, None], None, *TABLE, inplace=True),
    "swiglu_again": lambda t: rooftile.swiglu_again(t, ONES, ONES),
}


@pytest.mark.parametrize("name", WRITES)
def test_who_saved_what_is_written_in_place_notices(name, past_autograd):
    past_autograd(OPS[name])
    written, weight = torch.ones(2, 8), torch.ones(8, requires_grad=True)
    product = (weight * written).sum()
    WRITES[name](written)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("name", sorted(WRITES.keys() - {"residual_add_overwrite"}))
def test_what_is_written_in_place_has_a_place_for_every_element(name):
    """A kernel would write it several times over without a word; as it is, residual_add said so and the others did not."""
    with pytest.raises(ValueError, match=r"with strides \[.*0, 1\]: elements share a place"):
        WRITES[name](torch.ones(1, 8).expand(2, 8))


HEADS = torch.randn(1, 4, 6, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda b, h: rooftile.residual_add(b[4:12], b[:8], inplace=True), "residual_add_overwrite: elements of residual and x, which begin 16 bytes"),
        (lambda b, h: rooftile.residual_add(b.view(8, 8).t(), b.view(8, 8), inplace=True), "residual and x, which begin 0 bytes apart, share a place"),
        (lambda b, h: rooftile.rope(h[:, :, :4], h[:, :, 3:], *TURNS, layout="BTHD", inplace=True), "q and k, which begin 96 bytes apart"),
        (lambda b, h: rooftile.rope(h, h, *TURNS, layout="BTHD", inplace=True), "q and k, which begin 0 bytes apart"),
        (lambda b, h: rooftile.concat_kv(h, h, HEADS[:, :2], HEADS[:, :2], torch.tensor([1]), layout="BTHD"), "of k_cache and v_cache, which"),
        (lambda b, h: rooftile.concat_kv(h, HEADS + 1, h[:, :2], HEADS[:, :2], torch.tensor([1]), layout="BTHD"), "of k_cache and k, which"),
        (lambda b, h: rooftile.rope(h, None, h[0, :, 0, :4], TURNS[1], layout="BTHD", inplace=True), "of q and cos, which begin 0 bytes apart"),
        (lambda b, h: rooftile.concat_kv(h, HEADS + 1, *[HEADS[:, :2]] * 2, torch.tensor([1]), TURNS[0], h[0, :, 0, :4], layout="BTHD"), "k_cache and sin"),
        (lambda b, h: rooftile.residual_add(HEADS[0, 0], b[:13].unfold(0, 8, 1), inplace=True), r"strides \[1, 1\]: elements share a place"),
    ],
)  # fmt: skip
def test_what_else_lies_where_a_kernel_writes_is_refused(call, said):
    """Of what is written there and read here nobody knows which comes first. Before anything is written, and each time."""
    buffer, heads = torch.arange(64.0), HEADS.clone()
    before = buffer.clone(), heads.clone()
    for _ in range(2):
        with pytest.raises(ValueError, match=said):
            call(buffer, heads)
    assert torch.equal(buffer, before[0]) and torch.equal(heads, before[1])


def test_what_is_read_where_it_is_written_or_lies_beside_it_is_not_refused():
    buffer, heads = torch.arange(64.0), HEADS.clone()
    rooftile.residual_add(buffer[8:16], buffer[:8], inplace=True)
    assert torch.equal(buffer[:8], torch.arange(8.0) * 2 + 8)
    rooftile.residual_add(buffer[32:40], buffer[32:40], inplace=True)
    assert torch.equal(buffer[32:40], torch.arange(32.0, 40) * 2)
    rooftile.rope(heads[:, :, :4], heads[:, :, 4:], *TURNS, layout="BTHD", inplace=True)
    assert torch.equal(heads, rooftile.rope(HEADS, None, *TURNS, layout="BTHD"))
    both = torch.cat([HEADS.flatten(), TURNS[0].flatten()])  # a table behind them in one buffer
    turned = rooftile.rope(
        both[: HEADS.numel()].view_as(HEADS), None, both[HEADS.numel() :].view_as(TURNS[0]), TURNS[1], layout="BTHD", inplace=True
    )
    assert torch.equal(turned, heads)
    caches, new = torch.zeros(2, 1, 4, 6, 8), [torch.ones(1, 2, 6, 8)] * 2
    rooftile.concat_kv(*caches, *new, torch.tensor([1]), layout="BTHD")
    bare = HEADS.to("meta")  # has no memory that could be shared
    rooftile.rope(bare[:, :, :4], bare[:, :, 4:], *(t.to("meta") for t in TURNS), layout="BTHD", inplace=True)


def test_a_call_that_is_known_still_says_where_things_lie():
    """What runs by guards alone: neighbours that move together, then the same shapes one in another."""
    op, buffer = OPS["residual_add_overwrite"], torch.zeros(64)
    for first in ((buffer[16:24], buffer[:8]), (torch.zeros(8), torch.zeros(8))):
        op.forget()
        rooftile.residual_add(*first, inplace=True)
        assert len(op._known.calls) == 1 and op._known.calls[0](*first) is not MISS
        assert op._known.calls[0](buffer[4:12], buffer[:8]) is MISS
        with pytest.raises(ValueError, match="share a place"):
            rooftile.residual_add(buffer[4:12], buffer[:8], inplace=True)
    op.forget()


class Seen(torch.Tensor):
    """Of a class of its own, as a DTensor, whose address is none."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(str(func))
        return super().__torch_dispatch__(func, types, args, kwargs or {})


def test_a_tensor_of_another_class_sees_the_operator_in_a_list_too():
    """A kernel would have taken its address, known call or not."""
    for _ in range(2):
        Seen.seen.clear()
        torch.testing.assert_close(rooftile.grad_norm([torch.ones(8), torch.ones(8).as_subclass(Seen)]), torch.tensor(4.0))
        assert Seen.seen == ["rooftile.grad_norm.default"]
        rooftile.grad_norm([torch.ones(8), torch.ones(8)])


def test_tensors_of_lists_that_are_written_lie_apart():
    """At both doors, the first time and once such a call is known; before anything is written."""

    def step(door, params):
        lists = ([torch.ones(8) for _ in params] for _ in range(3))
        door(params, *lists, [], torch.tensor([[1.0, 0.0, 1.0, 1.0]] * len(params)), None, None, 0.9, 0.999, 1e-8)

    op, x, buffer = OPS["adamw"], torch.zeros(8), torch.zeros(64)
    same, over = "params[0] and params[1], which begin 0 bytes apart", "params[1] and params[0], which begin 16 bytes apart"
    for door in (op, op.entry):
        op.forget()
        for _ in range(2):
            for params, said in (([x, x], same), ([x, x.view(8)], same), ([buffer[4:12], buffer[:8]], over)):
                with pytest.raises(ValueError, match=re.escape(f"adamw: elements of {said}, share a place, and params")):
                    step(door, params)
            assert not x.any() and not buffer.any()
            step(door, [torch.zeros(8), torch.zeros(8)])
    step(op, [buffer[:8], buffer[8:16]])
    assert buffer[:16].all() and not buffer[16:].any()
    op.forget()


def test_what_is_read_lies_apart_from_lists_that_are_written():
    """A gradient in a parameter's or a state's place would be read before or after that is written. Gradients alone may share theirs."""
    op, buffer = OPS["adamw"], torch.zeros(64)
    params, moments = [buffer[:8], buffer[8:16]], [[buffer[i : i + 8], torch.zeros(8)] for i in (24, 32)]
    hyper, one = torch.tensor([[1.0, 0.0, 1.0, 1.0]] * 2), torch.ones(8)

    def step(grads, scale=None):
        rooftile.adamw(params, grads, *moments, hyper, scale=scale)

    op.forget()
    for _ in range(3):
        before = buffer.clone()
        for grads, said in (
            ([buffer[4:12], one], "params[0] and grads[0], which begin 16 bytes apart"),
            ([params[0], one], "params[0] and grads[0], which begin 0 bytes apart"),
            ([one, buffer[28:36]], "exp_avgs[0] and grads[1], which begin 16 bytes apart"),
            ([one, buffer[20:28]], "exp_avgs[0] and grads[1], which begin -16 bytes apart"),
        ):
            with pytest.raises(ValueError, match=re.escape(f"adamw: elements of {said}, share a place, and {said.split()[0]} is written")):
                step(grads)
        with pytest.raises(ValueError, match=re.escape("adamw: elements of params[0] and scale, which begin 0 bytes apart")):
            step([one, one], buffer[0])
        assert torch.equal(buffer, before)
        step([one, one])
        step([buffer[40:48], buffer[44:52]])
        step([torch.ones(8), torch.ones(8)])
    assert len(op._known.calls) <= 2
    op.forget()


def test_there_is_no_second_derivative_at_either_door(past_autograd):
    op = OPS["softmax"]
    past_autograd(op, op.backward)
    for door in (op, op.entry):
        x = X.clone().requires_grad_()
        (dx,) = torch.autograd.grad(door(x).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate"):
            dx.square().sum().backward()


def test_a_tangent_is_refused_and_not_dropped(past_autograd):
    past_autograd(OPS["softmax"])
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X, torch.ones_like(X))
        for door in (OPS["softmax"], OPS["softmax"].entry):
            with pytest.raises(NotImplementedError, match="no forward-mode"):
                door(x)
        rooftile.softmax(X)  # nobody wants this one's
    with pytest.raises(NotImplementedError, match="no forward-mode"):
        torch.func.jvp(rooftile.softmax, (X,), (torch.ones_like(X),))


def test_a_calls_device_is_also_that_of_a_list():
    """Seen red: an operator of lists alone was never recorded on a GPU."""
    assert device_of([None, 1.0, [X]]) == X.device and device_of([None, [], 3]) is None
