"""What the grid cannot say of mlp: the grid itself on the kernels of cuBLASLt, over a library that is its header put into Python; planted errors; the module."""

import copy

import pytest
import torch
import torch.nn.functional as F

from library_of_products import in_the_machines_place
from rooftile.core.kernel import OPS, forced
from rooftile.cuda import cublaslt
from rooftile.ops import MLP, GatedMLP, mlp
from rooftile.ops.mlp import cublaslt_kernels as kernels
from rooftile.ops.mlp.cuda_kernels import keep
from rooftile.workbench import check

BOTH = ("mlp", "mlp_backward")


@pytest.fixture
def library(monkeypatch):
    """cuBLASLt on a CPU."""
    monkeypatch.setattr(cublaslt, "off_gpu", lambda x: None)
    with in_the_machines_place(monkeypatch) as put:
        yield put(offered=4, tiles=(24, 23, 20, 28))


def verdicts(name, kernel):
    return check.run_points([p for p in check.grid([OPS[name]]) if p.kernel.name == kernel], "cpu")


@pytest.mark.parametrize("name", BOTH)
def test_the_gate_on_composed(name):
    made = verdicts(name, "composed")
    assert len(made) > 60 and [v for v in made if v.status != "passed"] == []


WHY = {  # the words of a refusal, and the cases it is for
    "float32": "cuBLASLt's gelu is for float16 and bfloat16",
    "approximate=none": "approximate is 'none', cuBLASLt's gelu is the tanh form",
    "keep=slope": "keep is 'slope', cuBLASLt's gelu keeps what it is given",
    "M0_": "there is nothing to compute",
    "_K1_": "do not begin at whole 16 bytes",
    "misaligned": "bytes past a multiple of 16",
}
BACKWARD = {"float16": "cuBLASLt's gradient of gelu is up to 1.5e-5 off", **WHY}


@pytest.mark.parametrize("name", BOTH)
def test_the_gate_on_cublaslt(name, library):
    made = verdicts(name, "cublaslt")
    assert [v for v in made if v.status not in ("passed", "refused")] == []
    for v in made:
        # bfloat16, or it would be float16
        asked = f"{v.case.replace('=float32', '').replace('bfloat16', '')} {v.variant}"
        first = next((words for mark, words in (WHY if name == "mlp" else BACKWARD).items() if mark in asked), None)
        assert (v.status == "refused") == (first is not None) and (first or "") in v.message, v
    taken = {(v.case.split("-")[1], v.variant) for v in made if v.status == "passed"}
    assert {
        (d, v)
        for d in ("bfloat16", "float16")[: 2 if name == "mlp" else 1]
        for v in ("normal", "sliced", "transposed", "scaled_rows", "nan")
    } <= taken
    chosen = {which for which, *_ in library.log}
    assert chosen == ({3, 0} if name == "mlp" else {2})  # where the preferred tile is; into a stream the first offered


def _changed(**wrong):
    """product with one of its arguments changed."""

    def plant(product):
        def run(*args, **how):
            names = ("out", "left", "right", "epilogue", "aux", "bias")
            call = {**dict(zip(names, args)), **how}
            product(**{**call, **{n: change(call) for n, change in wrong.items()}})

        return run

    return plant


PLANTS = {
    "no bias": ("mlp", _changed(bias=lambda c: None)),
    "pre not kept": ("mlp", _changed(aux=lambda c: torch.empty_like(c["aux"]))),
    "rows taken for others": ("mlp", _changed(left=lambda c: c["left"].flip(0))),
    "the wrong pre": ("mlp_backward", _changed(aux=lambda c: c["aux"].flip(0).contiguous())),
    "gelu again": ("mlp_backward", _changed(epilogue=lambda c: "gelu", aux=lambda c: c["aux"].clone())),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_products_are_refused(plant, library, monkeypatch):
    name, wrong = PLANTS[plant]
    monkeypatch.setattr(kernels.cublaslt, "product", wrong(cublaslt.product))
    tanh = {"approximate": "tanh"}
    for case in [c for c in OPS[name].spec.cases if "smoke" in c.use and c.dtype == torch.bfloat16 and c.params == tanh]:
        verdict = check.Problem(OPS[name].spec, case, "normal", "cpu").judge(OPS[name].kernel("cublaslt"))
        assert verdict.status == "failed", (case.id, verdict)


def test_it_is_first_in_line_where_it_takes_the_call(library):
    op, tanh = OPS["mlp"], next(c for c in OPS["mlp"].spec.cases if c.dtype == torch.bfloat16 and "smoke" in c.use)
    assert op.choose(op.spec.draw(tanh)).kernel.name == "cublaslt" and op.choose(op.spec.draw(tanh)).config == {"ALGO": -1}
    assert op.backward.choose(op.backward.spec.draw(tanh)).config == {"ALGO": -1}
    assert op.choose({**op.spec.draw(tanh), "approximate": "none"}).kernel.name == "composed"


def test_without_a_gpu_it_refuses_in_a_sentence():
    with (
        pytest.raises(ValueError, match="the forced kernel cublaslt refuses: cuBLASLt needs a CUDA device, the tensor is on cpu"),
        forced("mlp", "cublaslt"),
    ):
        mlp(*weights(torch.bfloat16), "tanh")


def weights(dtype=torch.float32, k=16, f=40):
    gen = torch.Generator().manual_seed(0)
    shapes = ((5, k), (f, k), (f,), (24, f), (24,))
    return [torch.randn(*s, generator=gen).div(s[-1] ** 0.5 if len(s) > 1 else 1).to(dtype) for s in shapes]


def theirs(x, w1, b1, w2, b2, approximate):
    low = [None if t is None else t.to(x.dtype) for t in (w1, b1, w2, b2)]
    return F.linear(F.gelu(F.linear(x, *low[:2]), approximate=approximate), *low[2:])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("biases", ["both", "first", "none"])
def test_against_pytorch(approximate, biases):
    x, w1, b1, w2, b2 = (t.requires_grad_() for t in weights())
    call = (x, w1, b1 if biases != "none" else None, w2, b2 if biases == "both" else None, approximate)
    ours, wanted = mlp(*call), theirs(*call)
    torch.testing.assert_close(ours, wanted)
    leaves, upstream = [t for t in call[:5] if t is not None], torch.randn(wanted.shape)
    for a, e in zip(torch.autograd.grad(ours, leaves, upstream), torch.autograd.grad(wanted, leaves, upstream)):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)


def test_float32_weights_beside_bfloat16_have_gradients_that_are_not_rounded(library):
    """On both kernels: closer to the exact gradient than bfloat16 can say, and in float32."""
    x, *parameters = weights()
    x, parameters = x.repeat(40, 1).bfloat16(), [p.requires_grad_() for p in parameters]
    for kernel in ("composed", "cublaslt"):
        with forced("mlp", kernel):
            out = mlp(x, *parameters, "tanh")
            made = torch.autograd.grad(out, parameters, torch.ones_like(out))
        assert out.dtype == torch.bfloat16 and all(g.dtype == torch.float32 for g in made)
        assert all(not torch.equal(g, g.bfloat16().float()) for g in made[:2]), kernel


def test_strides_and_leading_axes(library):
    x, *parameters = weights(torch.bfloat16)
    x = x.expand(3, 5, 16)
    for kernel in ("composed", "cublaslt"):
        with forced("mlp", kernel):
            out = mlp(x, *parameters, "tanh")
            assert out.shape == (3, 5, 24) and out.is_contiguous()
            strange = mlp(x.transpose(0, 1), *(p.t().contiguous().t() if p.dim() == 2 else p for p in parameters), "tanh")
            torch.testing.assert_close(strange.transpose(0, 1), out)


def test_a_gradient_expanded_from_one_number(library):
    x, *parameters = (t.requires_grad_() for t in weights(torch.bfloat16))
    for kernel in ("composed", "cublaslt"):
        with forced("mlp", kernel):
            made = torch.autograd.grad(mlp(x, *parameters, "tanh").sum(), (x, *parameters))
            wanted = torch.autograd.grad(theirs(x, *parameters, "tanh").sum(), (x, *parameters))
        for a, e in zip(made, wanted):
            assert (a - e).float().norm() < 0.02 * e.float().norm()


def test_module_is_two_linear_layers():
    torch.manual_seed(0)
    ours = MLP(16, 40, 24, approximate="tanh")
    assert list(ours.state_dict()) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"] and "approximate='tanh'" in repr(ours)
    x = torch.randn(2, 3, 16)
    torch.testing.assert_close(ours(x), ours.fc2(F.gelu(ours.fc1(x), approximate="tanh")))
    plain = MLP(16, 40, bias=False, dtype=torch.bfloat16)
    assert plain.fc1.bias is None and plain(x.bfloat16()).shape == (2, 3, 16)


class Adapted(torch.nn.Module):
    """As LoRA wraps a layer, whose weight is still to be had."""

    def __init__(self, base):
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias

    def forward(self, x):
        return 2 * self.base(x)


@pytest.mark.parametrize("around", ["forward hook", "backward hook", "spectral norm", "adapter"])
def test_what_is_put_around_a_layer_counts(around):
    """Each computed, and trained, as if nobody had touched the layers."""
    torch.manual_seed(0)
    x = torch.randn(5, 16)
    for module, names, act in (
        (MLP(16, 40, approximate="tanh"), ("fc1", "fc2"), lambda x: F.gelu(x, approximate="tanh")),
        (GatedMLP(16, 40, activation="relu"), ("gate_up_proj", "down_proj"), lambda x: F.relu(x[..., :40]) * x[..., 40:]),
    ):
        for name in names:
            layer = getattr(module, name)
            if around == "forward hook":
                layer.register_forward_hook(lambda _, inputs, out: 2 * out)
            elif around == "backward hook":
                layer.register_full_backward_hook(lambda _, dinputs, douts: (2 * dinputs[0],))
            elif around == "spectral norm":
                torch.nn.utils.spectral_norm(layer).eval()  # the hook makes the weight anew, from another one that is trained
            else:
                setattr(module, name, Adapted(layer))
        first, second = (getattr(module, name) for name in names)
        x.requires_grad_()
        for _ in range(2):
            ours, wanted = module(x), second(act(first(x)))
            torch.testing.assert_close(ours, wanted)
            leaves = (x, *module.parameters())
            ours, wanted = (torch.autograd.grad(out.mean(), leaves) for out in (ours, wanted))
            torch.testing.assert_close(ours, wanted)
            with torch.no_grad():
                for p in module.parameters():
                    p.mul_(1.5)


class Bytes(torch.Tensor):
    """A weight of 8 bits and a scale a row, which knows one thing: how it is multiplied by."""

    @staticmethod
    def __new__(cls, number, scale):
        return torch.Tensor._make_wrapper_subclass(cls, number.shape, dtype=scale.dtype)

    def __init__(self, number, scale):
        self.number, self.scale = number, scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, weight, bias = args
            return F.linear(x, weight.number.to(x.dtype) * weight.scale, bias)
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is not torch.ops.aten.detach.default:
            raise NotImplementedError(f"{func} of {cls.__name__}")
        return cls(args[0].number, args[0].scale)


def test_a_weight_of_a_class_of_its_own_is_multiplied_by_as_it_says():
    """As torchao's are: the operator was asked to take it, and it knows of no operator."""
    x = torch.randn(5, 16)
    for module, names in ((MLP(16, 40), ("fc1", "fc2")), (GatedMLP(16, 40), ("down_proj",))):
        rough = copy.deepcopy(module)
        for layer in map(module.get_submodule, names):
            scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
            number = (layer.weight.detach() / scale).round().to(torch.int8)
            layer.weight = torch.nn.Parameter(Bytes(number, scale), requires_grad=False)
        torch.testing.assert_close(module(x), rough(x), rtol=0, atol=0.01)


def test_without_a_gradient_the_result_is_the_same():
    x, *parameters = (t.requires_grad_() for t in weights())
    with torch.no_grad():
        plain = mlp(x, *parameters)
    assert not plain.requires_grad and torch.equal(plain, mlp(x, *parameters))


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda c: {**c, "weight1": c["weight1"][:, 1:]}, "K is 15 in weight1, but 16 in x"),
        (lambda c: {**c, "bias1": c["bias1"][1:]}, "F is 39 in bias1, but 40 in weight1"),
        (lambda c: {**c, "weight2": c["weight2"][:, 1:]}, "F is 39 in weight2, but 40 in weight1"),
        (lambda c: {**c, "bias2": c["bias2"][1:]}, "N is 23 in bias2, but 24 in weight2"),
        (lambda c: {**c, "weight1": c["weight1"].half()}, "dtype is float16 in weight1, but float32 in x"),
        (lambda c: {**c, "residual": torch.zeros(5, 23)}, "N is 23 in residual, but 24 in weight2"),
        (lambda c: {**c, "approximate": "sigmoid"}, "approximate is 'sigmoid', takes none or tanh"),
    ],
)
def test_messages_have_both_numbers(change, said):
    call = dict(zip(OPS["mlp"].names, [*weights(), "tanh"]))
    for wanted in (False, True):  # a gradient, for which it must be decided what to keep
        for t in list(call.values())[:5]:
            t.requires_grad_(wanted)
        with pytest.raises(ValueError, match=said):
            mlp(**change(call))


def test_what_is_no_tensor_or_has_no_rows_is_told():
    x, *rest = (t.requires_grad_() for t in weights())
    with pytest.raises(ValueError, match="mlp: x"):
        mlp("x", *rest)
    with pytest.raises(ValueError, match="mlp: x"):
        mlp(x[0, 0], *rest)


def test_the_first_product_alone_is_the_librarys(library):
    """One product forward and one backward: the others, this small, are PyTorch's own."""
    x, *parameters = (t.requires_grad_() for t in weights(torch.bfloat16))
    with forced("mlp", "cublaslt"):
        mlp(x, *parameters, "tanh").sum().backward()
    assert [shape for *_, shape in library.log] == [(5, 40), (5, 40)]


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_into_a_stream_against_pytorch(approximate, library):
    """By either kernel the second layer is one product of the library's, and no other is asked for in its place."""
    for dtype, kernel in ((torch.float32, "composed"), (torch.bfloat16, "composed"), (torch.bfloat16, "cublaslt")):
        if (kernel, approximate) == ("cublaslt", "none"):
            continue
        args = [t.requires_grad_() for t in weights(dtype)]
        stream = torch.randn(5, 24, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
        library.log.clear()
        with forced("mlp", kernel):
            ours, wanted = mlp(*args, approximate, stream), theirs(*args, approximate) + stream
        assert [shape for *_, shape in library.log] == {"composed": [(5, 24)], "cublaslt": [(5, 40), (5, 24)]}[kernel][
            dtype.itemsize // 4 :
        ]
        loose = {} if dtype == torch.float32 else {"rtol": 0.03, "atol": 0.03}
        torch.testing.assert_close(ours, wanted, **loose)
        upstream = torch.randn(wanted.shape).to(dtype)
        leaves = (*args, stream)
        for a, e in zip(torch.autograd.grad(ours, leaves, upstream), torch.autograd.grad(wanted, leaves, upstream)):
            torch.testing.assert_close(a, e, **(loose or {"rtol": 1e-5, "atol": 1e-5}))


@pytest.mark.parametrize("lost", [2, 3], ids=["residual", "bias2"])
def test_a_term_that_the_second_layer_loses_is_refused(lost, monkeypatch):
    op, launch = OPS["linear_add"], OPS["linear_add"].launch
    monkeypatch.setattr(op, "launch", lambda *args: launch(*(torch.zeros_like(t) if i == lost else t for i, t in enumerate(args))))
    for case in [c for c in OPS["mlp"].spec.cases if "smoke" in c.use and "stream" in c.params]:
        assert check.Problem(OPS["mlp"].spec, case, "normal", "cpu").judge(OPS["mlp"].kernel("composed")).status == "failed"


@pytest.mark.gpu
def test_on_hopper_the_slope_is_kept_where_there_is_a_gradient_in_one_graph_too():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("on other devices what gelu was given is kept")
    gen = torch.Generator("cuda").manual_seed(0)
    shapes = ((8192, 256), (1024, 256), (1024,), (256, 1024), (256,))
    args = [torch.randn(*s, generator=gen, device="cuda", dtype=torch.bfloat16).div(16).requires_grad_() for s in shapes]
    assert keep(args[0], args[1], args[3]) == "slope" and keep(args[0][:64], args[1], args[3]) == "pre"
    graph = torch.compile(lambda *t: mlp(*t, "tanh"), fullgraph=True, dynamic=True)
    for rows in (8192, 6000):
        x = args[0][:rows].detach().requires_grad_()
        made = []
        for run in (lambda *t: mlp(*t, "tanh"), graph, theirs_tanh):
            out = run(x, *args[1:])
            made.append([out, *torch.autograd.grad(out, (x, *args[1:]), torch.ones_like(out))])
        assert all(map(torch.equal, *made[:2]))
        for ours, wanted in zip(*made[1:]):
            assert (ours - wanted).float().norm() <= 1e-2 * wanted.float().norm()


def theirs_tanh(*args):
    return theirs(*args, "tanh")
