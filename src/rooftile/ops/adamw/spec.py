from dataclasses import replace

import torch

from rooftile.core.spec import FLOATS, Arg, Call, Case, OpSpec, across, normal
from rooftile.ops.adamw.reference import adamw, adamw_measured, grad_norm

BETAS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
SEVERAL = ((5, 67), (1,), (129,))
RUN = ("smoke", "check")


def _squares(shape, dtype, gen, dims):
    return normal(shape, torch.float32, gen, dims).square().to(dtype)


def _hyper(shape, dtype, gen, dims):
    """Learning rate, decay and both bias corrections of step 3, another rate for every tensor."""
    rows = torch.tensor([[1e-2, 0.1, 1 - 0.9**3, 1 - 0.999**3]]) * torch.ones(len(dims["P"]), 1)
    rows[:, 0] *= torch.arange(1, len(rows) + 1)
    return rows.to(gen.device)


def _fits(call: Call, dims) -> None:
    if call["hyper"].shape != (len(call["params"]), 4):
        raise ValueError(f"adamw: hyper is {list(call['hyper'].shape)}, needs {[len(call['params']), 4]}: a row a tensor")
    for name in ("params", "grads", "exp_avgs"):
        dtypes = list(dict.fromkeys(t.dtype for t in (*call[name], *(call["exp_avg_sqs"] if name == "exp_avgs" else []))))
        if len(dtypes) > 1:
            raise ValueError(f"adamw: {name} are {dtypes[0]} and {dtypes[1]}, the tensors of a list have one dtype")
    for name in ("beta1", "beta2"):
        if not 0 <= call[name] < 1:
            raise ValueError(f"adamw: {name} is {call[name]}, it must be in [0, 1)")
    if not call["eps"] >= 0:
        raise ValueError(f"adamw: eps is {call['eps']}, it must be at least 0")
    if call["masters"] and call["seed"] is not None:
        raise ValueError("adamw: masters and a seed are both given: with float32 masters nothing is left to round at random")


def _fused(params, grads, exp_avgs, exp_avg_sqs, masters, hyper, scale, seed, beta1, beta2, eps):
    """PyTorch's fused AdamW. It takes one rate for all tensors: right for timing, and the gate measures against the reference."""
    steps = [torch.full((), 3.0, device=hyper.device) for _ in params]
    torch._fused_adamw_(params, grads, exp_avgs, exp_avg_sqs, [], steps, lr=1e-2, beta1=beta1, beta2=beta2, weight_decay=0.1,
                        eps=eps, amsgrad=False, maximize=False)  # fmt: skip


def _kinds(call, case, gen):
    """`states`, `gradients`: float32 beside narrower parameters; `master`: float32 copies; `clip`: a scale; `stochastic`: a seed."""
    kind = case.params
    for name in ("exp_avgs", "exp_avg_sqs") if kind.get("states") == "float32" else ():
        call[name] = [t.float() for t in call[name]]
    if kind.get("gradients") == "float32":
        call["grads"] = [t.float() for t in call["grads"]]
    device = call["hyper"].device
    call["masters"] = [t.float() + 1e-4 for t in call["params"]] if kind.get("master") else []
    call["scale"] = torch.full((), 0.37, device=device) if kind.get("clip") else None
    call["seed"] = torch.full((), 2**40 + 7, dtype=torch.int64, device=device) if kind.get("stochastic") else None
    return call


def _gpt2(n=12, d=768, v=50304, t=1024):
    block = ((3 * d, d), (3 * d,), (d, d), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,), (d,), (d,), (d,), (d,))
    return ((v, d), (t, d), *block * n, (d,), (d,))


def moved(call, results):
    """Gradients in, states in and out; parameters in and out, or out alone where a master goes in and out beside them."""
    size = {n: sum(t.numel() * t.itemsize for t in call[n]) for n in ("params", "grads", "exp_avgs", "exp_avg_sqs", "masters")}
    states = 2 * (size["exp_avgs"] + size["exp_avg_sqs"] + size["masters"])
    return size["grads"] + states + size["params"] * (1 if call["masters"] else 2)


SPEC = OpSpec(
    "adamw",
    adamw,
    args={
        "params": Arg("P", mutated=True, many=True),
        "grads": Arg("P", "io|f32", many=True),
        "exp_avgs": Arg("P", "io|f32", mutated=True, many=True),
        "exp_avg_sqs": Arg("P", "io|f32", mutated=True, many=True, make=_squares),
        "masters": Arg("P", "f32", mutated=True, many=True, optional=True),
        "hyper": Arg("...", "f32", _hyper),
        "scale": Arg("", "f32", optional=True),
        "seed": Arg("", "i64", optional=True),
    },
    returns={},
    cases=(
        *across(
            (torch.float32, torch.bfloat16),
            Case({"P": SEVERAL}, params=BETAS, use=RUN, why="several tensors, ragged tails"),
            Case({"P": ((), (0,), (3,))}, params=BETAS, why="a scalar, an empty tensor"),
            Case({"P": ((70001,), (2048,), (33, 1000))}, params=BETAS, why="several chunks a tensor"),
        ),
        Case(
            {"P": SEVERAL},
            torch.bfloat16,
            {**BETAS, "master": True, "states": "float32", "clip": True},
            use=RUN,
            why="float32 masters, clipped",
        ),
        Case(
            {"P": SEVERAL},
            torch.bfloat16,
            {**BETAS, "states": "float32", "gradients": "float32"},
            use=RUN,
            why="float32 states and gradients",
        ),
        Case({"P": SEVERAL}, torch.bfloat16, {**BETAS, "stochastic": True, "clip": True}, use=RUN, why="stochastic rounding, clipped"),
        Case({"P": _gpt2()}, torch.float32, BETAS, use=("bench",), why="GPT-2 124M, 148 tensors"),
        Case({"P": ((2**28,),)}, torch.float32, BETAS, use=("bench",), why="anchor: 268 million float32"),
        Case({"P": ((2**28,),)}, torch.bfloat16, BETAS, use=("bench",), why="anchor: bfloat16 states"),
        Case({"P": ((2**28,),)}, torch.bfloat16, {**BETAS, "stochastic": True}, use=("bench",), why="bfloat16 states, stochastic rounding"),
        Case({"P": _gpt2()}, torch.bfloat16, {**BETAS, "master": True, "states": "float32"}, use=("bench",), why="GPT-2, float32 masters"),
    ),
    peer=_fused,
    dtypes=(torch.float32, torch.bfloat16),
    families=("scaled_rows", "all_equal"),
    flops=lambda d: 12 * sum(torch.Size(s).numel() for s in d["P"]),
    draw_with=_kinds,
    moved=moved,
    validate=_fits,
)


def _fused_measured(grads, **rest):
    norm = torch.nn.utils.get_total_norm(grads)
    _fused(grads=grads, **rest)
    return norm


# The step, and the norm of the gradients as they were read: of a training run that clips nothing and reports it.
MEASURED = replace(
    SPEC,
    name="adamw_measured",
    reference=adamw_measured,
    returns={"norm": Arg("", "f32")},
    peer=_fused_measured,
    flops=lambda d: 14 * sum(torch.Size(s).numel() for s in d["P"]),
)


def _one_at_least(call: Call, dims) -> None:
    if not call["grads"]:
        raise ValueError("grad_norm: grads has 0 tensors, needs 1 at least")


def torch_grad_norm(grads):
    return torch.nn.utils.get_total_norm(grads)


NORM = OpSpec(
    "grad_norm",
    grad_norm,
    args={"grads": Arg("P", many=True)},
    returns={"norm": Arg("", "f32")},
    cases=(
        *across(
            FLOATS,
            Case({"P": SEVERAL}, use=RUN, why="several tensors, ragged tails"),
            Case({"P": ((), (0,), (3,))}, why="a scalar, an empty tensor"),
            Case({"P": ((70001,), (2048,), (33, 1000))}, why="several chunks a tensor, several a program"),
        ),
        Case({"P": _gpt2()}, torch.float32, use=("bench",), why="GPT-2 124M, 148 tensors"),
        Case({"P": _gpt2()}, torch.bfloat16, use=("bench",), why="the same in bfloat16"),
    ),
    peer=torch_grad_norm,
    families=("scaled_rows", "all_equal", "nan"),
    flops=lambda d: 2 * sum(torch.Size(s).numel() for s in d["P"]),
    validate=_one_at_least,
)
