"""What the grid cannot say of AdamW: many steps beside PyTorch's, state dicts both ways, what it refuses."""

import copy
import inspect
import math
import pickle
import sys

import pytest
import torch
import torch.distributed.checkpoint
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import rooftile
from rooftile.core.kernel import OPS
from rooftile.core.spec import Case
from rooftile.cuda import simulator
from rooftile.cuda.launch import recording
from rooftile.ops.adamw import cuda_kernels
from rooftile.ops.adamw.spec import BETAS, SPEC


def models(dtype=torch.float32):
    torch.manual_seed(0)
    one = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3)).to(dtype)
    two = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3)).to(dtype)
    two.load_state_dict(one.state_dict())
    return one, two


def groups(model):
    return [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 3e-3},
    ]


def steps(model, optimizer, count, start=0):
    for i in range(start, start + count):
        torch.manual_seed(i)
        model(torch.randn(4, 7)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def close(one, two):
    for a, b in zip(one.parameters(), two.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_fifty_steps_beside_pytorch():
    one, two = models()
    steps(one, rooftile.AdamW(groups(one), lr=1e-2), 50)
    steps(two, torch.optim.AdamW(groups(two), lr=1e-2), 50)
    close(one, two)


@pytest.mark.parametrize("first, second", [(rooftile.AdamW, torch.optim.AdamW), (torch.optim.AdamW, rooftile.AdamW)])
def test_state_dicts_go_both_ways(first, second):
    one, two = models()
    a, b = first(groups(one), lr=1e-2), torch.optim.AdamW(groups(two), lr=1e-2)
    steps(one, a, 5)
    steps(two, b, 5)
    c = second(groups(one), lr=1e-2)
    c.load_state_dict(a.state_dict())
    steps(one, c, 5, 5)
    steps(two, b, 5, 5)
    close(one, two)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["deepcopy", "pickle"])
def test_a_copy_goes_on_by_itself(copied):
    one, two = models()
    a, b = rooftile.AdamW(groups(one), lr=1e-2, max_norm=0.5), rooftile.AdamW(groups(two), lr=1e-2, max_norm=0.5)
    steps(one, a, 3)
    steps(two, b, 3)
    one, c = copied((one, a))
    steps(one, c, 3, 3)
    steps(two, b, 3, 3)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters()))
    assert a.grad_norm is not None and [int(s["step"]) for s in a.state.values()] == [3] * 6


def test_a_parameter_without_gradient_is_left_alone():
    one, _ = models()
    before = one[0].weight.clone()
    optimizer = rooftile.AdamW(one.parameters(), lr=1.0)
    one[2].bias.grad = torch.ones_like(one[2].bias)
    optimizer.step()
    assert torch.equal(one[0].weight, before) and not torch.equal(one[2].bias, torch.zeros(3))


def test_a_step_without_one_gradient_does_nothing():
    model, _ = models()
    before = [p.clone() for p in model.parameters()]
    ours = rooftile.AdamW(model.parameters(), max_norm=1.0)
    assert ours.step(lambda: 3.0) == 3.0 and all(map(torch.equal, model.parameters(), before)) and not ours.state


def test_one_launch_for_all_groups(monkeypatch):
    one, _ = models()
    launched = []
    monkeypatch.setattr(rooftile.AdamW, "_launch", lambda self, op, members, scale: launched.append(len(members.params)))
    steps(one, rooftile.AdamW(groups(one)), 1)
    assert launched == [6]


@pytest.mark.parametrize(
    "wrong, words", [({"lr": -1.0}, "lr is -1.0"), ({"betas": (0.9, 1.0)}, r"betas are \(0.9, 1.0\)"), ({"eps": -1e-8}, "eps is -1e-08")]
)
def test_wrong_settings(wrong, words):
    with pytest.raises(ValueError, match=words):
        rooftile.AdamW([torch.nn.Parameter(torch.ones(1))], **wrong)


@pytest.mark.parametrize("name", list(inspect.signature(torch.optim.AdamW).parameters))
def test_pytorchs_arguments_are_taken_by_their_names(name):
    """Seen red: "unexpected keyword argument 'fused'", of those that ask for nothing else too."""
    default = inspect.signature(torch.optim.AdamW).parameters[name].default
    weight = torch.nn.Parameter(torch.ones(1))
    if name != "params":
        rooftile.AdamW([weight], **{name: default})
    if name in ("foreach", "fused"):
        rooftile.AdamW([weight], **{name: True})
    elif name in ("amsgrad", "maximize", "differentiable"):
        with pytest.raises(ValueError, match=f"AdamW: {name}=True is not supported: use torch.optim.AdamW"):
            rooftile.AdamW([weight], **{name: True})
    elif name == "capturable":
        with pytest.raises(ValueError, match="AdamW: capturable=True is not supported: a step is captured as it is, and `advance` before"):
            rooftile.AdamW([weight], capturable=True)
    if isinstance(default, bool) or default is None:
        with pytest.raises(ValueError, match=f"AdamW: {name} is 'no', takes bool"):
            rooftile.AdamW([weight], **{name: "no"})


def test_pytorchs_arguments_are_in_pytorchs_order():
    ours, theirs = (list(inspect.signature(c).parameters.values()) for c in (rooftile.AdamW, torch.optim.AdamW))
    assert [(p.name, p.default, p.kind) for p in ours[: len(theirs)]] == [(p.name, p.default, p.kind) for p in theirs]
    made = (c([torch.nn.Parameter(torch.ones(1))], fused=True).state_dict()["param_groups"][0] for c in (rooftile.AdamW, torch.optim.AdamW))
    one, other = (dict(sorted(group.items())) for group in made)
    assert one == other


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"lr": -1.0}, "lr is -1.0, must be at least 0"),
        ({"betas": (2.0, 0.9)}, "betas are .2.0, 0.9., both must be in"),
        ({"betas": (0.9,)}, "betas are .0.9,., both must be in"),
        ({"maximize": True}, "a group has maximize=True, which is not supported: use torch.optim.AdamW"),
        ({"max_norm": 1.0}, "a group has max_norm=1.0, which is the same for all groups"),
    ],
)
def test_wrong_groups(wrong, words):
    weight = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=words):
        rooftile.AdamW([{"params": [weight], **wrong}])
    optimizer = rooftile.AdamW([weight])
    with pytest.raises(ValueError, match=words):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], **wrong})
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match=words):
        optimizer.load_state_dict({**state, "param_groups": [{**state["param_groups"][0], **wrong}]})


def test_a_state_that_a_hook_puts_in_order():
    """PyTorch's way to load by names. The moments came as they were saved."""
    ours = [torch.nn.Parameter(torch.ones(n)) for n in (2, 3)]
    optimizer = rooftile.AdamW(ours)
    for p in ours:
        p.grad = torch.ones_like(p)
    optimizer.step()
    other = rooftile.AdamW([p.detach().clone().requires_grad_() for p in reversed(ours)])
    other.register_load_state_dict_pre_hook(lambda _, d: {**d, "state": {0: d["state"][1], 1: d["state"][0]}})
    other.load_state_dict(optimizer.state_dict())
    for p in other.param_groups[0]["params"]:
        assert other.state[p]["exp_avg"].shape == p.shape


@pytest.mark.parametrize(
    "first, second", [(rooftile.AdamW, torch.optim.AdamW), (torch.optim.AdamW, rooftile.AdamW), (rooftile.AdamW, rooftile.AdamW)]
)
def test_checkpoints_of_torch_distributed_go_both_ways(first, second, tmp_path):
    """They are loaded by the names that the loading optimizer has. Seen red: ours lacked PyTorch's "amsgrad" and others, in which it found a missing key."""
    saved, (model, twin) = [], models()
    for kind, m in ((first, model), (second, twin)):
        optimizer = kind(m.parameters(), lr=1e-2)
        if not saved:
            steps(m, optimizer, 2)
        state = dict(zip(("model", "optimizer"), get_state_dict(m, optimizer)))
        if saved:
            torch.distributed.checkpoint.load(state, checkpoint_id=tmp_path)
            set_state_dict(m, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        else:
            torch.distributed.checkpoint.save(state, checkpoint_id=tmp_path)
        saved.append(optimizer)
    for m, optimizer in zip((model, twin), saved):
        steps(m, optimizer, 2, start=2)
    close(model, twin)


def test_what_a_hook_finds_after_loading_is_what_stays():
    """Seen red: moments still in bfloat16, as PyTorch casts them, and what the hook made of them was lost."""
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = rooftile.AdamW([weight], state_dtype=torch.float32)
    weight.grad = torch.full_like(weight, 1.001)
    optimizer.step()
    found = []

    def halve(o):
        found.append((o.state[weight]["exp_avg"].dtype, o.state[weight]["exp_avg"].clone()))
        o.state[weight]["exp_avg"].mul_(0.5)

    optimizer.register_load_state_dict_post_hook(halve)
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    ((dtype, seen),) = found
    assert dtype == torch.float32 and torch.equal(seen, saved["state"][0]["exp_avg"])
    assert torch.equal(optimizer.state[weight]["exp_avg"], seen / 2)


def test_groups_that_a_hook_mends():
    """Seen red: groups were looked at before the hooks, which might have mended them; and not after, when they might be wrong."""
    optimizer = rooftile.AdamW([torch.nn.Parameter(torch.ones(2))])
    state = optimizer.state_dict()
    amsgrad = {**state, "param_groups": [{**state["param_groups"][0], "amsgrad": True}]}
    handle = optimizer.register_load_state_dict_pre_hook(lambda _, d: state)
    optimizer.load_state_dict(amsgrad)
    handle.remove()
    optimizer.register_load_state_dict_pre_hook(lambda _, d: amsgrad)
    with pytest.raises(ValueError, match="a group has amsgrad=True"):
        optimizer.load_state_dict(state)


def test_a_state_dict_of_another_optimizer():
    """Seen red: a KeyError 'eps'."""
    weight = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="a group of the state dict has no betas, it has lr, momentum, "):
        rooftile.AdamW([weight]).load_state_dict(torch.optim.SGD([weight], momentum=0.9).state_dict())


def test_a_step_in_a_compiled_function():
    def train(compiled):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = rooftile.AdamW([weight], lr=0.1)
        weight.grad = torch.ones(3)
        step = torch.compile(lambda: optimizer.step(), backend="aot_eager") if compiled else optimizer.step
        for _ in range(3):
            step()
        return weight.detach()

    assert torch.equal(train(True), train(False))


def test_wrong_lists():
    call = SPEC.draw(SPEC.cases[0])
    with pytest.raises(ValueError, match="number of tensors P is 1 in grads, but 0 in params"):
        rooftile.adamw([], [torch.ones(3)], [], [], torch.zeros(0, 4))
    with pytest.raises(ValueError, match="number of tensors P is 2 in grads, but 3 in params"):
        rooftile.adamw(call["params"], call["grads"][:2], call["exp_avgs"], call["exp_avg_sqs"], call["hyper"])
    with pytest.raises(ValueError, match=r"hyper is \[2, 4\], needs \[3, 4\]"):
        rooftile.adamw(call["params"], call["grads"], call["exp_avgs"], call["exp_avg_sqs"], call["hyper"][:2])
    for name, value, words in (
        ("beta1", 2.0, "2.0, it must be in"),
        ("beta2", math.nan, "nan, takes a finite"),
        ("eps", -1.0, "-1.0, it must be"),
    ):
        with pytest.raises(ValueError, match=f"adamw: {name} is {words}"):
            rooftile.adamw(*(call[n] for n in ("params", "grads", "exp_avgs", "exp_avg_sqs", "hyper")), **{name: value})


def test_clipping_beside_pytorch():
    one, two = models()
    ours, theirs = rooftile.AdamW(groups(one), lr=1e-2, max_norm=0.1), torch.optim.AdamW(groups(two), lr=1e-2)
    for i in range(10):
        for model in (one, two):
            torch.manual_seed(i)
            model(torch.randn(4, 7)).square().sum().backward()
        before = [p.grad.clone() for p in one.parameters()]
        ours.step()
        norm = torch.nn.utils.clip_grad_norm_(two.parameters(), 0.1)
        theirs.step()
        torch.testing.assert_close(ours.grad_norm, norm)
        assert norm > 0.1 and all(torch.equal(p.grad, g) for p, g in zip(one.parameters(), before)), "gradients are not written"
        ours.zero_grad()
        theirs.zero_grad()
    close(one, two)


def test_an_infinite_norm_measures_and_scales_nothing():
    one, two = models()
    optimizer, twin = rooftile.AdamW(one.parameters(), max_norm=math.inf), rooftile.AdamW(two.parameters())
    drive(optimizer, twin, lambda o: o.step())
    norm = torch.nn.utils.get_total_norm([p.grad for p in two.parameters()])
    assert same(optimizer, twin)
    torch.testing.assert_close(optimizer.grad_norm, norm)


def test_an_infinite_gradient_spoils_its_own_number_alone():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = rooftile.AdamW([p], max_norm=math.inf)
    p.grad = torch.tensor([1.0, math.inf, 1.0])
    optimizer.step()
    assert optimizer.grad_norm.isinf() and p.isfinite().tolist() == [True, False, True]


def test_a_state_that_is_cleared_begins_anew():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = rooftile.AdamW([p])
    p.grad = torch.ones(3)
    for _ in range(2):
        optimizer.step()
        optimizer.state[p].clear()
    optimizer.step()
    assert optimizer.state[p]["step"] == 1


def test_rates_may_be_tensors():
    numbers = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.5}
    tensors = {n: tuple(map(torch.tensor, v)) if n == "betas" else torch.tensor(v) for n, v in numbers.items()}
    pair = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    for p, rates in zip(pair, (numbers, tensors)):
        p.grad = torch.arange(3.0)
        rooftile.AdamW([p], **rates).step()
    torch.testing.assert_close(*pair)


def test_masters_follow_a_float32_model():
    one, two = models()
    one = one.bfloat16()
    two.load_state_dict({n: p.float() for n, p in one.state_dict().items()})
    ours, theirs = rooftile.AdamW(one.parameters(), lr=1e-3, master=True), torch.optim.AdamW(two.parameters(), lr=1e-3)
    for i in range(20):
        torch.manual_seed(i)
        for p, q in zip(one.parameters(), two.parameters()):
            p.grad = torch.randn(p.shape).bfloat16()
            q.grad = p.grad.float()
        ours.step()
        theirs.step()
    for p, q in zip(one.parameters(), two.parameters()):
        torch.testing.assert_close(ours.state[p]["master"], q.detach(), rtol=1e-5, atol=1e-6)
        assert torch.equal(p, ours.state[p]["master"].bfloat16()) and ours.state[p]["exp_avg"].dtype == torch.float32


def test_a_resumed_optimizer_keeps_its_masters_and_moments():
    one, _ = models(torch.bfloat16)
    ours = rooftile.AdamW(one.parameters(), lr=1e-3, master=True)
    for p in one.parameters():
        p.grad = torch.ones_like(p)
    ours.step()
    again = rooftile.AdamW(one.parameters(), lr=1e-3, master=True)
    again.load_state_dict(ours.state_dict())
    for p in one.parameters():
        for name in ("master", "exp_avg", "exp_avg_sq"):
            assert torch.equal(again.state[p][name], ours.state[p][name]) and again.state[p][name].dtype == torch.float32
    plain = torch.optim.AdamW(one.parameters(), lr=1e-3)
    for p in one.parameters():
        p.grad = torch.ones_like(p)
    plain.step()
    again = rooftile.AdamW(one.parameters(), lr=1e-3, master=True)
    again.load_state_dict(plain.state_dict())
    again.step()  # masters that were not saved begin as the parameters are


@pytest.mark.parametrize("trained", [0, 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_masters_that_are_loaded_go_on_for_all(trained, dtype):
    """Into an optimizer that was made without, and where one parameter alone has been trained: of two bfloat16 ones the other's masters were lost or missed."""
    pair = [torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16)) for _ in range(2)]
    first = rooftile.AdamW(pair, lr=1e-4, master=True)
    pair[trained].grad = torch.ones(4, dtype=torch.bfloat16)
    first.step()
    saved, plain = first.state_dict(), [torch.nn.Parameter(p.detach().to(dtype)) for p in pair]
    again = rooftile.AdamW(plain, lr=1e-4)
    again.load_state_dict(saved)
    for _ in range(3):
        for p in plain:
            p.grad = torch.ones_like(p)
        again.step()
    held = [again.state[p]["master"] for p in plain]
    assert held[trained].unique().item() == pytest.approx(1 - 4e-4, abs=1e-5) and held[1 - trained].unique().item() == pytest.approx(
        1 - 3e-4, abs=1e-5
    )
    assert all(torch.equal(p, m.to(dtype)) for p, m in zip(plain, held))
    with pytest.raises(ValueError, match="the state dict has float32 masters of 1 parameters"):
        rooftile.AdamW(plain, stochastic=True).load_state_dict(saved)


def test_stochastic_rounding_keeps_what_is_below_half_a_step():
    torch.manual_seed(0)
    rounded, random = (torch.nn.Parameter(torch.ones(4096, dtype=torch.bfloat16)) for _ in range(2))
    for p, stochastic in ((rounded, False), (random, True)):
        optimizer = rooftile.AdamW([p], lr=1e-4, weight_decay=0.0, stochastic=stochastic)
        for _ in range(20):
            p.grad = torch.ones_like(p)
            optimizer.step()
    assert bool((rounded == 1).all())  # each update is a fortieth of a step
    mean = float(random.detach().float().mean())
    steps_taken = ((random.detach().float() - 1) / 2**-8).unique()
    assert abs(mean - (1 - 20e-4)) < 5 * 2**-8 / 4096**0.5 and bool((steps_taken == steps_taken.round()).all())


def test_every_parameter_has_random_bits_of_its_own():
    torch.manual_seed(0)
    twins = [torch.nn.Parameter(torch.ones(10000, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = rooftile.AdamW(twins, lr=1e-3, stochastic=True)
    for p in twins:
        p.grad = torch.ones_like(p)
    optimizer.step()
    a, b = ((p.detach().float() != 1).double() for p in twins)
    assert (
        0.235 < float(a.mean()) < 0.28 and abs(float(torch.corrcoef(torch.stack((a, b)))[0, 1])) < 0.05
    )  # five standard deviations of 10000


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"max_norm": 0.0}, "max_norm is 0.0, must be above 0"),
        ({"max_norm": torch.tensor(1.0)}, r"max_norm is tensor\(1.\), must be a number or None"),  # which is above 0
        ({"lr": "3e-4"}, "lr is '3e-4', must be a number or a tensor of one"),  # as a file of settings has it
        ({"master": True, "stochastic": True}, "master and stochastic"),
        ({"state_dtype": torch.float16}, "state_dtype is torch.float16"),
    ],
)
def test_wrong_kinds(wrong, words):
    with pytest.raises(ValueError, match=words):
        rooftile.AdamW([torch.nn.Parameter(torch.ones(1))], **wrong)


def test_wrong_kinds_of_lists():
    call = SPEC.draw(next(c for c in SPEC.cases if c.dtype == torch.bfloat16))
    call["masters"] = [t.float() for t in call["params"]]
    call["seed"] = torch.tensor(1)
    with pytest.raises(ValueError, match="masters and a seed are both given"):
        rooftile.adamw(
            *(call[n] for n in ("params", "grads", "exp_avgs", "exp_avg_sqs", "hyper")), masters=call["masters"], seed=call["seed"]
        )
    with pytest.raises(ValueError, match=r"grads are torch.bfloat16 and torch.float32"):
        rooftile.adamw(
            call["params"],
            [call["grads"][0], *(g.float() for g in call["grads"][1:])],
            call["exp_avgs"],
            call["exp_avg_sqs"],
            call["hyper"],
        )
    with pytest.raises(ValueError, match="grads has 0 tensors, needs 1 at least"):
        rooftile.grad_norm([])


KINDS = [
    (torch.float32, {}),
    (torch.bfloat16, {"clip": True}),
    (torch.bfloat16, {"master": True, "states": "float32"}),
    (torch.bfloat16, {"stochastic": True}),
    (torch.bfloat16, {"states": "float32", "gradients": "float32", "stochastic": True}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype, kind", KINDS)
def test_rungs_take_chunk_after_chunk(dtype, kind):
    """Chunks of several steps and steps of several vectors, two blocks for all of them, ragged ends; races are watched."""
    op = OPS["adamw"]
    params = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, **kind}
    call = op.spec.draw(Case({"P": ((5003,), (0,), (3,), (2, 1024))}, dtype, params))
    wanted = {n: [t.clone() for t in v] if isinstance(v, list) else v for n, v in call.items()}
    op.spec.reference(*wanted.values())
    configs = {
        "cuda.v1_naive": None,
        "cuda.v2_vector": {"vecs": 2, "threads": 64, "chunk": 1024, "once": True},
        "cuda.v3_pipeline": {"stages": 3, "threads": 64, "per": 1, "chunk": 1024, "once": False},
        "cuda.v6_once": {"vecs": 2, "threads": 64, "steps": 4},
    }
    for name, config in configs.items():
        made = {n: [t.clone() for t in v] if isinstance(v, list) else v for n, v in call.items()}
        with simulator.active("all"):
            op.kernel(name).bound(config)(*made.values())
        for n in ("params", "exp_avgs", "exp_avg_sqs", "masters"):
            for a, b in zip(made[n], wanted[n]):
                torch.testing.assert_close(a, b, rtol=1.6e-2 if a.dtype == torch.bfloat16 else 1e-5, atol=1e-6)
                if a.dtype == torch.bfloat16 and a.numel() > 100:  # the same random words: few roundings fall the other way
                    assert (a != b).float().mean() < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norms_of_many_chunks(dtype):
    """Two blocks for all chunks; a chunk that is read twice or not at all would show, as would the vector across an end."""
    gen = torch.Generator().manual_seed(2)
    grads = [torch.randn(n, generator=gen).to(dtype) for n in (9001, 0, 3, 4096)]
    wanted = OPS["grad_norm"].spec.reference(grads)
    for name, config in (("cuda.v4_norm", {}), ("cuda.v5_norm_vector", {"vecs": 2, "threads": 64, "per": 1})):
        with simulator.active("all"):
            torch.testing.assert_close(OPS["grad_norm"].kernel(name).bound(config)(grads), wanted)


@pytest.mark.parametrize("gradients", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["cuda.v2_vector", "cuda.v3_pipeline", "cuda.v6_once"])
def test_the_norm_of_what_the_step_reads(name, gradients):
    """Of the gradients as they are, not scaled; of chunks and vectors across an end, of every block. The step is what it is without."""
    gen = torch.Generator().manual_seed(3)
    call = OPS["adamw"].spec.draw(Case({"P": ((9001,), (0,), (3,), (4096,))}, torch.bfloat16, {**BETAS, "states": "float32", "clip": True}))
    call["grads"] = [torch.randn(g.shape, generator=gen).to(gradients) for g in call["grads"]]
    plain = {n: [x.clone() for x in v] if isinstance(v, list) else v for n, v in call.items()}
    measured, step = OPS["adamw_measured"].kernel(name), OPS["adamw"].kernel(name)
    config = next(c for c in step.configs if c["threads"] == 128)
    with simulator.active("all"):
        step.bound(config)(*plain.values())
        norm = measured.bound(config)(*call.values())
    torch.testing.assert_close(norm, torch.nn.utils.get_total_norm([g.float() for g in call["grads"]]))
    for n in ("params", "exp_avgs", "exp_avg_sqs"):
        assert all(torch.equal(a, b) for a, b in zip(call[n], plain[n]))


def test_the_root_stands_by_while_squares_are_added():
    """Beside six of their blocks of 256 threads; it reads nothing before the wait."""
    norm = OPS["grad_norm"].kernel("cuda.v5_norm_vector")
    squares, root = norm.sources
    assert root.functions["root"].early and "let_next_stand_by();" in squares.text
    with recording() as launched:
        norm.bound(norm.configs[0])([torch.zeros(9001)])
    assert launched[-1].block[0] + 256 * norm.configs[0]["per"] <= 2048
    body = root.text[root.text.index("ROOFTILE_EARLY") :]
    assert body.index("earlier_done();") < body.index("sum_of(gPartial")


@pytest.mark.parametrize("parts", [1, 8, 9, 12, 33, 1031])
def test_the_root_of_many_parts_in_shares(parts, monkeypatch):
    """As many as one block takes, and one more; whole shares, and a last one of a single part. Each part once."""
    monkeypatch.setattr(cuda_kernels, "MANY", 8)
    monkeypatch.setattr(cuda_kernels, "SHARE", 4)
    partial = torch.arange(1.0, parts + 1)
    with simulator.active("all"):
        assert torch.equal(cuda_kernels._root(partial), partial.sum().sqrt())


def test_a_tensor_past_16_bytes_is_refused_with_its_number():
    call = OPS["grad_norm"].spec.draw(Case({"P": ((8,), (8,))}, torch.float32, {}))
    call["grads"][1] = torch.zeros(9)[1:]
    with simulator.active():
        assert OPS["grad_norm"].kernel("cuda.v5_norm_vector").refuse(call) == (
            "grads[1] begins 4 bytes past a multiple of 16, and it reads 16 bytes at a time"
        )


def test_narrowed_parameters_go_on_as_the_float32_ones():
    """Given the same gradients, bit by bit, and through a state dict; parameters are the masters rounded. Some stay as they are."""
    one, two = models()
    narrowed, plain = rooftile.AdamW(one.parameters(), master=True, weight_decay=0.1), rooftile.AdamW(two.parameters(), weight_decay=0.1)
    narrow = list(one.parameters())[:2]
    narrowed.narrow(narrow)
    for i in range(4):
        for p, q in zip(one.parameters(), two.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(i)).to(p.dtype)
            q.grad = p.grad.float()
        narrowed.step()
        plain.step()
        if i == 1:
            narrowed.load_state_dict(narrowed.state_dict())
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        master = narrowed.state[p].get("master", p)
        assert torch.equal(master, q) and torch.equal(p, q.to(p.dtype)) and master.dtype == torch.float32
        assert (p.dtype == torch.bfloat16) == any(p is n for n in narrow)


def test_what_cannot_be_narrowed_is_refused():
    weight = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match="narrow is for master=True"):
        rooftile.AdamW([weight]).narrow([weight])
    optimizer = rooftile.AdamW([weight], master=True)
    for bad, match in (
        (torch.ones(2, dtype=torch.bfloat16), r"\[2\] is torch\.bfloat16"),
        (weight, r"\[3\] is one with a gradient or a state"),
        (torch.nn.Parameter(torch.ones(2)), r"\[2\] is none of this optimizer's"),
    ):
        weight.grad = torch.ones(3)
        with pytest.raises(ValueError, match=f"narrow takes plain float32 parameters before their first gradient, {match}"):
            optimizer.narrow([bad])
    weight.grad = None
    optimizer.narrow([weight])
    assert weight.dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"\[3\] is torch\.bfloat16"):
        optimizer.narrow([weight])


def drive(optimizer, twin, parts):
    """Six steps of both under a rate that falls; the first optimizer's last four in its two parts, as a graph's replay has them."""
    for i in range(6):
        for p, q in zip(optimizer.param_groups[0]["params"], twin.param_groups[0]["params"]):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(i)).to(p.dtype)
            q.grad = p.grad.clone()
        for one in (optimizer, twin):
            one.param_groups[0]["lr"] = 1e-2 / (i + 1)
        twin.step()
        if i < 2:
            optimizer.step()
        else:
            parts(optimizer)


def same(optimizer, twin):
    one, two = (o.state_dict()["state"] for o in (optimizer, twin))
    states = all(torch.equal(one[i][n], two[i][n]) for i in two for n in two[i])
    return states and all(torch.equal(p, q) for p, q in zip(*(o.param_groups[0]["params"] for o in (optimizer, twin))))


def test_a_step_in_two_parts_is_the_step():
    def both(optimizer):
        optimizer.advance()
        optimizer.update()

    for options in ({}, {"max_norm": 0.5}):
        one, two = models()
        optimizer, twin = (rooftile.AdamW(m.parameters(), **options) for m in (one, two))
        drive(optimizer, twin, both)
        assert same(optimizer, twin) and float(optimizer.state[one[0].weight]["step"]) == 6
    one, two = models()
    optimizer, twin = rooftile.AdamW(one.parameters()), rooftile.AdamW(two.parameters())
    drive(optimizer, twin, lambda o: o.update())
    assert not same(optimizer, twin), "rates that stand still would show"


def test_counts_are_one_tensor_and_every_state_has_its_own():
    one, _ = models()
    optimizer = rooftile.AdamW(one.parameters())
    steps(one, optimizer, 2)
    one[2].bias.grad = torch.ones_like(one[2].bias)
    optimizer.step()  # of one parameter alone
    assert [float(optimizer.state[p]["step"]) for p in one.parameters()] == [2, 2, 2, 2, 2, 3]
    other = torch.optim.AdamW(one.parameters())
    other.load_state_dict(optimizer.state_dict())
    steps(one, other, 1, 2)
    assert [float(other.state[p]["step"]) for p in one.parameters()] == [3, 3, 3, 3, 3, 4]


def test_captured_steps_say_what_they_need(monkeypatch):
    one, _ = models()
    api = sys.modules["rooftile.ops.adamw.api"]
    optimizer = rooftile.AdamW(one.parameters())
    with pytest.raises(RuntimeError, match="advance found 0 parameters"):
        optimizer.advance()
    for p in one.parameters():
        p.grad = torch.ones_like(p)
    monkeypatch.setattr(api, "_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="captured on 6 parameters that it was never run on"):
        optimizer.step()
    monkeypatch.setattr(api, "_capturing", lambda: False)
    optimizer.step()
    monkeypatch.setattr(api, "_capturing", lambda: True)
    optimizer.step()
    assert float(optimizer.state[one[0].weight]["step"]) == 1, "a captured step counts nothing"
    monkeypatch.setattr(api, "_capturing", lambda: False)
    with pytest.raises(RuntimeError, match="load it before"):
        optimizer.load_state_dict(optimizer.state_dict())
    one[0].weight.grad = None
    with pytest.raises(RuntimeError, match=r"1 have no gradient: \[5, 7\]"):
        optimizer.update()
    with pytest.raises(RuntimeError, match="have changed: now 5 parameters"):
        optimizer.step()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, options", [(torch.float32, {"max_norm": 0.5}), (torch.bfloat16, {"master": True}), (torch.float32, {})])
def test_a_captured_step_moves_with_its_rates(dtype, options):
    """Replays are bitwise the eager steps, counts, corrections and learning rates included."""
    one, two = (m.to("cuda", dtype) for m in models())
    optimizer, twin = (rooftile.AdamW(m.parameters(), **options) for m in (one, two))
    ours, theirs = list(one.parameters()), list(two.parameters())
    held = [torch.zeros_like(p) for p in ours]
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    for i in range(8):
        for g, q in zip(held, theirs):
            g.copy_(torch.randn(g.shape, generator=torch.Generator().manual_seed(i)))
            q.grad = g.clone()
        for o in (optimizer, twin):
            o.param_groups[0]["lr"] = 1e-2 / (i + 1)
        twin.step()
        for p, g in zip(ours, held):
            p.grad = g
        if i < 3:
            optimizer.step()
            continue
        if i == 3:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=side):
                optimizer.step()
        optimizer.advance()
        graph.replay()
    assert same(optimizer, twin) and float(optimizer.state[ours[0]]["step"]) == 8


def test_counts_and_rates_are_made_on_the_cpu_whatever_the_default_device():
    """As after torch.set_default_device("cuda"), where each step would wait for its rates."""
    p = torch.nn.Parameter(torch.ones(3, device="cpu"))
    optimizer, p.grad = rooftile.AdamW([p], lr=0.5, weight_decay=0.0), torch.ones_like(p)
    with torch.device("meta"):
        optimizer.step()
    assert optimizer.state[p]["step"].device.type == "cpu" and torch.allclose(p, torch.full((3,), 0.5))


@pytest.mark.parametrize("how", [{}, {"max_norm": 1.0}, {"max_norm": math.inf}, {"master": True}, {"stochastic": True}], ids=str)
def test_fake_tensors_take_steps(how):
    """As PyTorch's optimizer does, to say what a step would hold. Counts are real: rates are made of them."""
    with FakeTensorMode():
        model = torch.nn.Linear(3, 4, dtype=torch.float32 if "max_norm" in how else torch.bfloat16)
        one, two = (rooftile.AdamW(model.parameters(), **how) for _ in range(2))
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        for _ in range(2):
            one.step()
        two.load_state_dict(one.state_dict())
        two.step()
        p = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        refused, p.grad = rooftile.AdamW([p], **how), torch.ones_like(p)
        with pytest.raises(ValueError, match="float64"):
            refused.step()
        assert not refused.state[p]
    for optimizer, count in ((one, 2), (two, 3)):
        state = optimizer.state[model.weight]
        assert state["step"] == count and isinstance(state["exp_avg"], FakeTensor)


def test_a_state_dict_of_an_optimizer_that_goes_on_is_loaded_as_it_was():
    """Its moments were copied, its count was the other's own, so that the bias corrections were those of a step that these moments never saw."""
    p, q = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    first, second = rooftile.AdamW([p]), rooftile.AdamW([q])
    p.grad = q.grad = torch.ones(3)
    first.step()
    second.load_state_dict(first.state_dict())
    first.step()
    assert second.state[q]["step"] == 1 and first.state[p]["step"] == 2


def refused_of_two(dtype=torch.float64, device="cpu", **how):
    """An optimizer that has taken one step on a float32 parameter and is refused the next, with another beside it."""
    good, bad = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2, dtype=dtype, device=device))
    optimizer = rooftile.AdamW([good, bad], lr=0.1, **how)
    good.grad = torch.ones_like(good)
    optimizer.step()
    bad.grad = torch.ones_like(bad)
    return optimizer, good, bad


@pytest.mark.parametrize(
    "how, words",
    [({}, "params is float64, takes"), ({"max_norm": 1.0}, "grads is float64, takes"), ({"max_norm": math.inf}, "float64, takes"),
     ({"device": "meta", "dtype": torch.float32, "max_norm": 1.0}, "gradients are on cpu and meta")],
    ids=["plain", "clipped", "measured", "devices"],
)  # fmt: skip
def test_a_refused_step_changes_nothing(how, words):
    """Seen red: it was counted, again at each try, and what one launch took had moved before another was refused."""
    optimizer, good, bad = refused_of_two(**how)
    before, count = good.detach().clone(), optimizer.state[good]["step"].item()
    moments = [optimizer.state[good][n].clone() for n in ("exp_avg", "exp_avg_sq")]
    for _ in range(2):
        with pytest.raises(ValueError, match=words):
            optimizer.step()
    assert torch.equal(good, before) and all(map(torch.equal, moments, (optimizer.state[good][n] for n in ("exp_avg", "exp_avg_sq"))))
    assert optimizer.state[good]["step"] == count == 1 and bad not in optimizer.state
    bad.grad = None
    optimizer.step()
    alone = rooftile.AdamW([twin := torch.nn.Parameter(torch.ones(3))], lr=0.1, max_norm=how.get("max_norm"))
    for _ in range(2):
        twin.grad = torch.ones(3)
        alone.step()
    assert torch.equal(good, twin) and optimizer.state[good]["step"] == 2


def test_a_step_that_fails_on_its_way_counts_what_it_did(monkeypatch):
    """A device that is out of memory, or a kernel that cannot be compiled, is known when it is launched."""
    optimizer, good, bad = refused_of_two(torch.bfloat16)
    launch, failing = rooftile.AdamW._launch, [True]

    def full(self, op, members, scale=None):
        if failing[0] and bad in set(members.params):
            raise RuntimeError("out of memory")
        return launch(self, op, members, scale)

    monkeypatch.setattr(rooftile.AdamW, "_launch", full)
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step()
    assert optimizer.state[good]["step"] == 2 and not optimizer.state.get(bad, {"step": 0})["step"]
    failing[0] = False
    optimizer.step()
    assert optimizer.state[good]["step"] == 3 and optimizer.state[bad]["step"] == 1
