"""Wrong kernels are planted in every operator, and the gate must refuse each of them: a check that cannot fail is a defect."""

import itertools
import re
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from rooftile.core.kernel import OPS, Kernel, TooLarge
from rooftile.core.spec import Arg, Backward, Case, OpSpec
from rooftile.workbench import check, gatekeeper, inputs
from rooftile.workbench.check import Problem


def results(out) -> list[Tensor]:
    return [] if out is None else list(out) if isinstance(out, tuple) else [out]


def packed(out: list[Tensor]):
    return out[0] if len(out) == 1 else tuple(out)


def outputs(spec, call: dict) -> list[Tensor]:
    """What a run of the reference gives: its results, or what it wrote in place."""
    made = results(spec.reference(**call))
    return made or [t for n, a in spec.args.items() if a.mutated for t in call[n]]


def after(change):
    """A plant that spoils the right answer: `change` is told each output (or what was updated in place) and writes into it."""

    def plant(spec):
        def run(*args):
            call = dict(zip(spec.signature.parameters, args))
            made = [t if spec.returns == {} else t.clone(memory_format=torch.contiguous_format) for t in outputs(spec, call)]
            for t in made:
                if t.numel() and (t.is_floating_point() or t.dtype == torch.bool):
                    change(t)
            return packed(made) if spec.returns else None

        return run

    return plant


def before(change):
    """A plant that reads the wrong input: `change` gives what it takes each real tensor for, of those that are not written."""

    def plant(spec):
        def run(*args):
            call = dict(zip(spec.signature.parameters, args))
            real = any(_real(v) for n, v in call.items() if not spec.args.get(n) or not spec.args[n].mutated)
            seen = {n: _seen(change, v, real) if not spec.args.get(n) or not spec.args[n].mutated else v for n, v in call.items()}
            made = outputs(spec, seen)
            return packed([t.contiguous() for t in made]) if spec.returns else None

        return run

    return plant


def _real(v) -> bool:
    return any(map(_real, v)) if isinstance(v, list) else isinstance(v, Tensor) and v.is_floating_point()


def _seen(change, v, real):
    """Whole numbers are misread only where there is nothing else to misread."""
    if isinstance(v, list):
        return [_seen(change, t, real) for t in v]
    return change(v) if isinstance(v, Tensor) and v.dim() and (v.is_floating_point() or not real) else v


def _scale(t):
    t.copy_(~t if t.dtype == torch.bool else t.double() * 1.04)


def _last_tile(t):
    tail = t.view(-1)[-max(1, t.numel() // 8) :]
    tail.copy_(~tail) if t.dtype == torch.bool else tail.fill_(float("nan"))  # a poisoned mask is True, which may be right


def _last_column(t):
    t = t.clone()
    t[..., -1] = 0
    return t


def _wrong_axis(t):
    turned = t.transpose(-1, -2).reshape(t.shape) if t.dim() > 1 else t
    if torch.equal(turned, t):  # one head, one row: there is no other axis to mistake it for
        return t.flip(tuple(range(t.dim())))
    return turned


def stale(spec):
    """Gives the answer to a call it has seen before."""

    def run(*args):
        case = next(c for c in spec.cases if "smoke" in c.use and c.dtype == spec.dtypes[0])
        call = spec.draw(case, seed=99)
        made = outputs(spec, call)
        if spec.returns:
            return packed([t.contiguous() for t in made])
        now = dict(zip(spec.signature.parameters, args))
        written = [t for n, a in spec.args.items() if a.mutated for t in (now[n] if a.many else [now[n]])]
        for t, wrong in zip(written, made):
            both = min(t.numel(), wrong.numel())
            t.view(-1)[:both] = wrong.flatten()[:both]
        return None

    return run


def mutating(spec):
    """Right, but it scribbles on an input."""

    def run(*args):
        call = dict(zip(spec.signature.parameters, args))
        made = [t.contiguous() for t in results(spec.reference(**call))]
        read = [v[0] if isinstance(v, list) else v for n, v in call.items() if n in spec.args and not spec.args[n].mutated]
        target = next((t for t in read if _real(t)), read[0])
        first = target.view(-1)[0]
        target.view(-1)[0] = -1 - 2 * float(first) if _real(target) else int(first) // 2  # a length must stay one
        return packed(made) if spec.returns else None

    return run


def irreproducible(spec):
    """Another last bit at every call: a race seen from outside."""
    calls = []

    def run(*args):
        call = dict(zip(spec.signature.parameters, args))
        calls.append(1)
        made = outputs(spec, call)
        for t in made:
            if t.is_floating_point() and t.numel() and len(calls) % 2 == 0:
                if t.itemsize == 1:  # which PyTorch knows no next one of
                    t.view(torch.uint8).view(-1)[0] ^= 1
                else:
                    t.view(-1)[0] = torch.nextafter(t.view(-1)[0], torch.tensor(float("inf"), dtype=t.dtype))
            elif t.dtype == torch.bool and t.numel() and len(calls) % 2 == 0:
                t.view(-1)[0] ^= True
        return packed([t.contiguous() for t in made]) if spec.returns else None

    return run


PLANTS = {
    "wrong scale": after(_scale),
    "last tile unwritten": after(_last_tile),
    "last column dropped": before(_last_column),
    "wrong axis": before(_wrong_axis),
    "stale output": stale,
    "input mutated": mutating,
    "irreproducible": irreproducible,
}


def smoke(op) -> list:
    cases = [c for c in op.spec.cases if "smoke" in c.use and c.dtype == op.spec.dtypes[0]]
    assert cases
    return cases


def refused(op, run) -> list[str]:
    """The gate's verdict on every smoke case."""
    return [Problem(op.spec, c, "normal", "cpu").judge(Kernel("planted", run)).status for c in smoke(op)]


def _always(case):
    return True


def _additive(case):
    return case.params["to"] != "bool"


def _from_the_start(case):
    return case.params.get("exclusive", False) and not case.params.get("reverse", False)


def _from_the_end(case):
    return case.params.get("exclusive", False) and case.params.get("reverse", False)


HARMLESS = {  # plants that change nothing an operator reads, and in which cases
    ("reduce_sum", "wrong axis"): _always,  # a sum has no order
    ("grad_norm", "wrong axis"): _always,
    ("reduce_sum_backward", "wrong axis"): _always,  # dout is one number, and of x only the shape is read
    ("reduce_sum_backward", "last column dropped"): _always,
    ("attention_mask", "wrong scale"): _additive,  # 0 and -inf
    ("scan", "last column dropped"): _from_the_start,  # no sum has the last element in it
    ("scan_backward", "last column dropped"): _from_the_end,
}


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("name", OPS)
def test_planted_wrong_kernels_are_refused(name, plant):
    statuses = refused(OPS[name], PLANTS[plant](OPS[name].spec))
    harmless = HARMLESS.get((name, plant), lambda case: False)
    expected = ["passed" if harmless(c) else "failed" for c in smoke(OPS[name])]
    assert statuses == expected, f"{plant} passes for {name}: {statuses}"


def _lean(leave_out):
    """The reference, which does to its results what it is told where nothing is to be saved for a gradient."""

    def run(*args, save=True):
        made = results(OPS["layernorm"].spec.reference(*args))
        return tuple(made if save else leave_out(made))

    return run


@pytest.mark.parametrize(("leave_out", "verdict"), [
    (lambda made: [made[0], None, None], "passed"),
    (lambda made: made, "failed"),  # the statistics made for nobody
    (lambda made: [made[0] * 1.0001, None, None], "failed"),  # another result than with them
])  # fmt: skip
def test_what_a_kernel_leaves_out_where_nothing_is_saved(leave_out, verdict):
    assert set(refused(OPS["layernorm"], _lean(leave_out))) == {verdict}


@pytest.mark.parametrize("name", OPS)
def test_the_right_kernel_passes(name):
    spec = OPS[name].spec
    assert set(refused(OPS[name], OPS[name].kernels[-1].run)) == {"passed"}, spec.name


@pytest.mark.parametrize(
    "name", [n for n, op in OPS.items() if any("io" in a.dtype for a in op.spec.args.values()) and op.spec.dtypes[0].is_floating_point]
)
def test_lower_precision_is_refused(name):
    """float32 in, but the work done in bf16."""
    spec = OPS[name].spec

    def down(v):
        return (
            [down(t) for t in v]
            if isinstance(v, list)
            else v.bfloat16().to(v.dtype)
            if isinstance(v, Tensor) and v.is_floating_point()
            else v
        )

    def run(*args):
        call = {n: v if spec.args.get(n) and spec.args[n].mutated else down(v) for n, v in zip(spec.signature.parameters, args)}
        made = outputs(spec, call)
        return packed([down(t).contiguous() for t in made]) if spec.returns else None

    assert set(refused(OPS[name], run)) == {"failed"}


def _zeroed(name):
    """The reference with one of its inputs lost."""

    def plant(spec):
        def run(*args):
            call = dict(zip(spec.signature.parameters, args))
            return packed([t.contiguous() for t in results(spec.reference(**{**call, name: torch.zeros_like(call[name])}))])

        return run

    return plant


def _only(formula):
    return lambda spec: lambda *args: formula(dict(zip(spec.signature.parameters, args)))


def _first_result(change):
    """The reference with its first result changed, the others right."""

    def plant(spec):
        def run(*args):
            call = dict(zip(spec.signature.parameters, args))
            first, *rest = results(spec.reference(**call))
            return packed([change(call, first).contiguous(), *rest])

        return run

    return plant


def _last_result_zero(spec):
    return lambda *args: packed([*(made := results(spec.reference(*args)))[:-1], torch.zeros_like(made[-1])])


def _without_level(call, dx):
    """LayerNorm's dx without the mean it takes off."""
    g = call["dout"].float() if call["weight"] is None else call["dout"].float() * call["weight"].float()
    return dx + g.mean(-1, keepdim=True) * call["rstd"].unsqueeze(-1)


def _without_projection(call, dx):
    """RMSNorm's dx with its part along the row left in."""
    return call["dout"] * call["rstd"].unsqueeze(-1) * (1 if call["weight"] is None else call["weight"])


def _first_row_of_each(call):
    """The gradient of a segment's first row only."""
    begin, end = call["offsets"][:-1], call["offsets"][1:]
    dx = torch.zeros_like(call["x"])
    dx[begin[begin < end].long()] = call["dout"][begin < end]
    return dx


def _overwriting(call):
    dweight = torch.zeros_like(call["weight"])
    dweight[call["indices"].flatten()] = call["dout"].reshape(-1, dweight.shape[1])  # the last of equal tokens wins
    return dweight


def _gate_without_slope(call, dgate):
    """The gate's gradient as if the activation were a straight line."""
    gate, up = (call["gate"], call["up"]) if call["up"] is not None else call["gate"].chunk(2, -1)
    wrong = call["dout"] * up
    return wrong if call["up"] is not None else torch.cat([wrong, dgate[..., gate.shape[-1] :]], -1)


def _straight(call, dx):
    """An MLP's dx as if gelu were a straight line."""
    return call["dout"] @ call["weight2"] @ call["weight1"]


def _open(call, dx):
    """A gated MLP's dx as if its gate stood open: up's share alone."""
    return call["dout"] @ call["weight2"] @ call["weight1"].chunk(2)[1]


def _not_turned_back(call):
    """The gradient of what was turned."""
    call = {**call, "cos": torch.ones_like(call["cos"]), "sin": torch.zeros_like(call["sin"])}
    return OPS["rotary_attention_backward"].spec.reference(**call)


MISSING_TERM = {
    "swiglu_backward": _first_result(_gate_without_slope),
    "geglu_backward": _first_result(_gate_without_slope),
    "reglu_backward": _first_result(_gate_without_slope),
    "softmax_backward": _only(lambda c: c["out"] * c["dout"]),
    "mlp_backward": _first_result(_straight),
    "gated_mlp_backward": _first_result(_open),
    "gelu_backward": _only(lambda c: c["dout"] * torch.sigmoid(1.702 * c["x"])),
    "layernorm_backward": _first_result(_without_level),
    "add_layernorm_backward": _zeroed("dsum"),
    "reduce_sum_backward": _only(lambda c: c["dout"].expand(c["x"].shape) / c["x"].numel()),
    "transpose_backward": _only(lambda c: c["dout"].reshape(*c["dout"].shape[:-2], *c["dout"].shape[:-3:-1])),
    "scan_backward": _only(lambda c: c["dout"].cumsum(-1)),  # the forward's direction
    "gemv_backward": _last_result_zero,
    "segment_sum_backward": _only(_first_row_of_each),
    "rmsnorm_backward": _first_result(_without_projection),
    "log_softmax_backward": _only(lambda c: c["dout"].clone()),
    "masked_softmax_backward": _only(lambda c: c["scale"] * c["out"] * c["dout"]),
    "rope_backward": lambda spec: lambda *args: packed(OPS["rope"].spec.reference(*args)),  # turned on, not back
    "add_rmsnorm_backward": _zeroed("dsum"),
    "cross_entropy_backward": _first_result(
        lambda c, d: torch.where(torch.arange(d.shape[1]) == c["target"][:, None], torch.zeros_like(d), d)
    ),
    "linear_cross_entropy_backward": _last_result_zero,
    "linear_cross_entropy_frozen_backward": _only(lambda c: c["gx"]),
    "linear_cross_entropy_ahead_backward": _only(lambda c: packed([c["gx"], c["gweight"], c["gbias"]])),  # dloss and count forgotten
    "attention_backward": _zeroed("out"),
    "attention_qkvpacked_backward": _zeroed("out"),
    "rotary_attention_backward": _only(_not_turned_back),
    "attention_options_backward": _zeroed("dlse"),
    "attention_varlen_backward": _zeroed("out"),
    "gemm_backward": _last_result_zero,
    "linear_backward": _last_result_zero,
    "linear_add_backward": _last_result_zero,
    "embedding_backward": _only(_overwriting),
    "dropout_backward": _first_result(lambda c, d: d * (1 - c["p"])),
    "array_increment_backward": _only(lambda c: torch.zeros_like(c["dout"])),
    "residual_add_backward": _only(lambda c: torch.zeros_like(c["dout"])),
    "bias_mask_scale_add_backward": _first_result(lambda c, d: c["dout"] * c["scale"]),  # the mask forgotten
    "dropout_add_norm_backward": _zeroed("dsum"),
    "vector_add_backward": _only(lambda c: packed([torch.zeros_like(c["dout"])] * len(OPS["vector_add_backward"].spec.returns))),
}


@pytest.mark.parametrize("name", [n for n in OPS if n.endswith("_backward")])
def test_a_gradient_missing_a_term_is_refused(name):
    cases = [c for c in OPS[name].spec.cases if "smoke" in c.use and c.dtype == torch.float32]
    assert name in MISSING_TERM, f"MISSING_TERM lacks {name}: its gradient with a term left out, which the gate must refuse"
    run = MISSING_TERM[name](OPS[name].spec)
    statuses = [Problem(OPS[name].spec, c, "normal", "cpu").judge(Kernel("planted", run)) for c in cases]
    assert "failed" in {v.status for v in statuses}, statuses


def largest(x: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(x.max(-1))


def largest_backward(dvalue: Tensor, x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter(-1, index[:, None], dvalue[:, None])


LARGEST = {
    "name": "largest",
    "reference": largest,
    "args": {"x": Arg("M N")},
    "returns": {"value": Arg("M"), "index": Arg("M", "i64")},
    "cases": (Case({"M": 5, "N": 8}),),
    "peer": lambda x: x.max(-1),
    "backward": Backward(largest_backward, grads=("x",)),
}


def test_a_gradient_is_judged_where_a_result_is_whole_numbers():
    """Seen red: PyTorch was asked for a gradient through the indices too, and no such operator could be judged ('dindex' is no argument)."""
    spec = OpSpec(**LARGEST)
    problem = Problem(spec.gradient, spec.cases[0], "normal", "cpu")
    assert problem.judge(Kernel("right", largest_backward)).status == "passed"
    assert problem.judge(Kernel("planted", lambda dvalue, x, index: torch.zeros_like(x))).status == "failed"


@pytest.mark.parametrize(
    "changed, sentence",
    [
        ({"args": {"y": Arg("M N")}}, "an argument 'y': its reference takes x"),
        ({"args": {"x": Arg("M N", "fp32")}}, "x of 'fp32', which is no dtype"),
        ({"backward": Backward(largest_backward, grads=("y",))}, "a gradient of 'y': its arguments are x"),
        ({"backward": Backward(largest_backward, grads=("x",), shaped=("y",))}, "a shape of 'y': its arguments are x"),
        ({"backward": Backward(lambda dy, x: dy, grads=("x",))}, "a gradient that takes 'dy': it may take dvalue, dindex, x, value, index"),
        ({"cases": (Case({"M": 5, "n": 8}),)}, "the case M5_n8-float32: it lacks N, an axis of x [M N]"),
        ({"cases": (Case({"M": 5, "N": 8}, use=("somke",)),)}, "its use is 'somke', there are smoke, check, bench, call"),
        ({"cases": (Case({"M": 5, "N": 8}, params={"k": 2}),)}, "'k' is no parameter, there are x"),
        ({"cases": (Case({"M": 5, "N": 8, "K": 3}),)}, "the case M5_N8_K3-float32: 'K' is no axis, there are M, N"),
    ],
)
def test_a_slip_in_a_declaration_is_told_where_it_is_made(changed, sentence):
    """Seen red: a KeyError far from it, or nothing: a use that there is not left a kernel unjudged and green, and a parameter that there is not its default; of dy for dout an assertion that
    did not name dout."""
    with pytest.raises(ValueError, match=f"^largest is declared with .*{re.escape(sentence)}"):
        OpSpec(**LARGEST | changed)


def test_results_are_as_they_are_declared():
    """Seen red: what torch.compile is told of an operator was held to nothing here, and a wrong axis or dtype was green."""
    for wrong, sentence in (
        ({"value": Arg("N"), "index": Arg("M", "i64")}, r"value as torch.float32 \[5\], declared \[N\] is torch.float32 \[8\]"),
        ({"value": Arg("M"), "index": Arg("M", "i32")}, r"index as torch.int64 \[5\], declared \[M\] is torch.int32 \[5\]"),
        ({"value": Arg("K"), "index": Arg("M", "i64")}, "no argument says how long 'K' is, nor does follows; known are M, N"),
    ):
        spec = OpSpec(**LARGEST | {"returns": wrong, "backward": None})
        with pytest.raises(ValueError, match=sentence):
            Problem(spec, spec.cases[0], "normal", "cpu")


def test_cost_by_a_letter_that_there_is_not():
    """Seen red: a KeyError of one letter."""
    spec = OpSpec(**LARGEST | {"flops": lambda d: d["K"]})
    with pytest.raises(ValueError, match="largest: its flops ask for 'K', a call has M, N"):
        spec.operations(spec.draw(spec.cases[0]))


def test_an_operator_without_cases_is_not_green():
    """Seen red: nothing was judged of kernels without smoke cases, and nothing said so."""
    unjudged = SimpleNamespace(spec=OpSpec(**LARGEST), kernels=())
    with pytest.raises(ValueError, match="largest: none of its 1 cases is for 'smoke', so that nothing would be judged here"):
        check.grid([unjudged], use="smoke")


def test_a_result_that_another_call_writes_over_is_refused():
    """Seen red: a launcher that keeps its output passed, for two runs in one memory never differ; and so did a result that is a view of its input."""
    case = next(c for c in OPS["softmax"].spec.cases if "smoke" in c.use)
    kept = torch.empty(case.dims["..."] + (case.dims["N"],) if "..." in case.dims else (case.dims["M"], case.dims["N"]), dtype=case.dtype)
    verdict = Problem(OPS["softmax"].spec, case, "normal", "cpu").judge(
        Kernel("planted", lambda *call: kept.copy_(OPS["softmax"].spec.reference(*call)))
    )
    assert verdict.message == "out: a second call wrote over what the first one returned"
    passing = Problem(OPS["array_increment_backward"].spec, OPS["array_increment_backward"].spec.cases[0], "normal", "cpu")
    assert passing.judge(Kernel("planted", lambda dout, *_: dout)).message == "dx: it lies in the memory of the input dout"


def test_a_kernel_of_wide_accesses_is_judged_at_a_stride():
    """Seen red: it refused the one slice there was, whose rows begin anywhere, so that N in the stride's place was right on every device."""
    spec = OPS["softmax"].spec
    case = next(c for c in spec.cases if c.dims == {"M": 5, "N": 264} and c.dtype == torch.float32)
    wide = Kernel(
        "planted", lambda x: x.as_strided(x.shape, (264, 1)).softmax(-1), refuse=lambda call: "odd" if call["x"].stride(0) % 4 else None
    )
    said = {v: Problem(spec, case, v, "cpu").judge(wide).status for v in inputs.layouts(spec)}
    assert said == {"sliced": "refused", "padded": "failed", "transposed": "refused", "misaligned": "passed", "far": "failed"}


def dense(residual):
    return residual.as_strided(residual.shape, torch.empty(residual.shape, device="meta").stride())


def beside(residual):
    """Its columns, and one more."""
    m, n = residual.shape
    return residual.as_strided((m, n + 1 if residual.stride(0) > n else n), residual.stride())


WRITTEN = {  # who writes where it would lie if it were dense, and who writes beside it
    dense: {"sliced": "failed", "padded": "failed", "transposed": "failed", "misaligned": "passed", "far": "failed"},
    beside: {"sliced": "failed", "padded": "failed", "transposed": "passed", "misaligned": "passed", "far": "error"},
}


@pytest.mark.parametrize("where", WRITTEN)
def test_what_is_written_in_place_is_laid_out_too(where):
    """Seen red: it was dense in every layout, and `concat_kv` counted heads in 32 bits."""
    spec = OPS["residual_add_overwrite"].spec
    case = next(c for c in spec.cases if c.dims["..."] == (3, 67) and c.dtype == torch.float32)

    def run(x, residual):
        right, to = residual + x, where(residual)
        to.fill_(1.0)
        to[:, : right.shape[1]] = right

    judged = {v: Problem(spec, case, v, "cpu").judge(Kernel("planted", run)) for v in inputs.layouts(spec)}
    assert {v: verdict.status for v, verdict in judged.items()} == WRITTEN[where]
    assert ("it wrote beside what it was given to write in" in judged["padded"].message) == (where is beside)


def test_a_copy_lies_as_what_it_is_of():
    for name, layout in inputs.LAYOUTS.items():
        t = layout(torch.randn(3, 4, 5))
        copy = inputs.as_it_lies(t)
        assert (copy.stride(), copy.storage_offset()) == (t.stride(), t.storage_offset()) and torch.equal(copy, t), name
        assert copy.untyped_storage().nbytes() == t.untyped_storage().nbytes() and copy.data_ptr() != t.data_ptr()
        around = [inputs.beside(x).nan_to_num(7.0) for x in (t, copy)]
        assert torch.equal(*around) and (name not in ("sliced", "padded") or (around[0] == 7.0).any())


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "layernorm_backward", "rmsnorm_backward"])
def test_families_and_layouts_are_of_several_rows(name):
    """Seen red: the least case of the norms has one, whose stride is never multiplied by anything but 0."""
    points = gatekeeper.affordable([p for p in check.grid([OPS[name]]) if p.kernel.name == "reference"])
    assert [p.case.id for p in points if p.variant != "normal" and p.case.dims.get("M") == 1] == []
    assert {p.variant for p in points} == {*inputs.families(OPS[name].spec), *inputs.layouts(OPS[name].spec)}


@pytest.mark.parametrize("variant", ["normal", "masked_rows", "nan"])
@pytest.mark.parametrize("name", ["log_softmax", "rmsnorm_backward", "quantize", "attention"])
def test_who_is_looked_at_no_further_would_not_have_passed(name, variant):
    """Controls, the right answer, and that with one place wrong by a little, by a lot or by NaN: what `read` says of each, `passes` says sooner."""
    spec, seen = OPS[name].spec, set()
    for case in [c for c in spec.cases if "smoke" in c.use and all(isinstance(n, int) and n > 0 for n in c.dims.values())][:3]:
        for gauge in Problem(spec, case, variant if variant in spec.families else "normal", "cpu").gauges:
            near = [gauge.expected.clone() for _ in range(3)]
            for out, wrong in zip(near, (1.001, 2.0, torch.nan)):
                out.view(-1)[0] = (out.view(-1)[0].double() * wrong).to(out.dtype)
            for out in [gauge.expected, *near, *gauge.controls().values()]:
                assert gauge.passes(out) is gauge.read(out).passed
                seen.add(gauge.passes(out))
    assert seen == {True, False}


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if not op.spec.exact])
def test_a_case_that_can_refuse_nothing_fails(name, monkeypatch):
    """With a tolerance so wide that wrong answers pass, the case itself must fail."""
    from dataclasses import replace

    from rooftile.core.spec import Tolerance

    spec = replace(OPS[name].spec, tolerance=Tolerance(factor=1e9, aggregate=1e9), linear=False)
    case = next(c for c in spec.cases if "smoke" in c.use and c.dtype == torch.float32)
    verdict = Problem(spec, case, "normal", "cpu").judge(OPS[name].kernels[-1])
    assert verdict.status == "failed" and "vacuous" in verdict.message


def test_what_asks_for_more_than_this_device_has_is_judged_by_a_config_that_fits():
    spec = OPS["residual_add"].spec
    case = next(c for c in spec.cases if "smoke" in c.use and c.dtype == torch.float32)

    def run(x, y, *, config):
        if config["kib"] > 99:
            raise TooLarge(f"it asks for {config['kib']} KiB of shared memory, cuda:0 has 99")
        return x + y + config["off"]

    def judged(*configs):
        verdict = Problem(spec, case, "normal", "cpu").judge(Kernel("planted", run, configs=configs))
        return verdict.status, verdict.message

    large, larger, right, wrong = ({"kib": n, "off": off} for n, off in ((128, 0.0), (163, 0.0), (99, 0.0), (64, 1.0)))
    assert judged(larger, large) == ("refused", "it asks for 163 KiB of shared memory, cuda:0 has 99")
    assert judged(larger, large, right, wrong)[0] == "passed" and judged(larger, wrong, right)[0] == "failed"


def test_one_argument_is_laid_out_alone_where_all_together_are_refused():
    """Seen red: attention_decode refuses caches between words, and nobody saw that it read queries there which begin between words."""
    spec = OPS["residual_add"].spec
    case = next(c for c in spec.cases if "smoke" in c.use and c.dtype == torch.float32)
    names = list(spec.args)

    def odd(call):
        return "between words" if call[names[1]].data_ptr() % 16 else None

    def flat(x, y):  # of x it takes a beginning at whole 16 bytes for granted
        at = x.data_ptr() % 16 // 4
        return torch.cat([x.new_zeros(at), x.reshape(-1)])[: x.numel()].view(x.shape) + y

    problem = Problem(spec, case, "misaligned", "cpu")
    wrong, right = (problem.judge(Kernel("planted", run, refuse=odd)) for run in (flat, lambda x, y: x + y))
    assert wrong.status == "failed" and wrong.message.startswith(f"{names[0]} alone misaligned: ")
    assert right.status == "refused" and right.message == "between words"
    both = Kernel("planted", flat, refuse=lambda call: "x or y" if any(call[n].data_ptr() % 16 for n in names) else None)
    assert problem.judge(both).status == "refused"


@pytest.mark.parametrize("by, varies, says, made", [
    (2.0**-23, "", "out: run 200 of 250 on the same inputs differs from the first", 201),  # to the end of its round
    (2.0**-23, "sums come in any order", "", 250),
    (1e-2, "sums come in any order", "out: run 200 of 250 is wrong: ", 200),
])  # fmt: skip
def test_a_call_is_repeated(by, varies, says, made):
    """Seen red: what goes wrong once in hundreds of runs was run twice."""
    spec = OPS["residual_add"].spec
    case = next(c for c in spec.cases if "smoke" in c.use and c.dtype == torch.float32)
    runs = itertools.count(1)
    kernel = Kernel("planted", lambda x, y: (x + y) * (1 + by * (next(runs) == 200)), varies=varies)
    verdict = Problem(spec, case, "repeated", "cpu").judge(kernel)
    assert verdict.status == ("failed" if says else "passed") and verdict.message.startswith(says) and next(runs) == made + 1


def test_only_a_gpu_repeats():
    on = {d: {p.variant for p in check.grid([OPS["softmax"]], device=d)} for d in ("cpu", "cuda")}
    assert on["cpu"] - on["cuda"] == {"far"} and on["cuda"] - on["cpu"] == {"repeated"}
    many = {p.case.dims["H"] for p in check.grid([OPS["attention"]], device="cuda") if p.variant == "repeated" and p.case.dims["T"] == 1024}
    assert many == {24} and check.grid(check.with_gradients(check.all_ops()), device="cuda")


def test_a_slow_call_is_repeated_for_a_while(monkeypatch):
    spec, runs = OPS["residual_add"].spec, itertools.count(1)
    case = next(c for c in spec.cases if "smoke" in c.use and c.dtype == torch.float32)
    monkeypatch.setattr(check, "PATIENCE", -1.0)
    verdict = Problem(spec, case, "repeated", "cpu").judge(Kernel("planted", lambda x, y: (next(runs), x + y)[1]))
    assert verdict.status == "passed" and next(runs) == 2
