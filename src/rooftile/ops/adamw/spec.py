import torch

from rooftile.core.spec import Arg, Call, Case, OpSpec, across, normal
from rooftile.ops.adamw.reference import adamw


def _squares(shape, dtype, gen, dims):
    return normal(shape, torch.float32, gen, dims).square().to(dtype)


def _hyper(shape, dtype, gen, dims):
    """Learning rate, decay and both bias corrections of step 3, another rate for every tensor."""
    rows = torch.tensor([[1e-2, 0.1, 1 - 0.9**3, 1 - 0.999**3]]) * torch.ones(len(dims["P"]), 1)
    rows[:, 0] *= torch.arange(1, len(rows) + 1)
    return rows.to(gen.device)


def _one_row_a_tensor(call: Call, dims) -> None:
    if call["hyper"].shape != (len(call["params"]), 4):
        raise ValueError(f"adamw: hyper is {list(call['hyper'].shape)}, needs {[len(call['params']), 4]}: a row a tensor")


def _fused(params, grads, exp_avgs, exp_avg_sqs, hyper, beta1, beta2, eps):
    """PyTorch's fused AdamW. It takes one rate for all tensors: right for timing, and the gate measures against the reference."""
    steps = [torch.full((), 3.0, device=hyper.device) for _ in params]
    torch._fused_adamw_(params, grads, exp_avgs, exp_avg_sqs, [], steps, lr=1e-2, beta1=beta1, beta2=beta2, weight_decay=0.1,
                        eps=eps, amsgrad=False, maximize=False)  # fmt: skip


def _gpt2(n=12, d=768, v=50304, t=1024):
    block = ((3 * d, d), (3 * d,), (d, d), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,), (d,), (d,), (d,), (d,))
    return ((v, d), (t, d), *block * n, (d,), (d,))


SPEC = OpSpec(
    "adamw",
    adamw,
    args={
        "params": Arg("P", mutated=True, many=True),
        "grads": Arg("P", many=True),
        "exp_avgs": Arg("P", mutated=True, many=True),
        "exp_avg_sqs": Arg("P", mutated=True, many=True, make=_squares),
        "hyper": Arg("...", "f32", _hyper),
    },
    returns={},
    cases=(
        *across(
            (torch.float32, torch.bfloat16),
            Case({"P": ((5, 67), (1,), (129,))}, use=("smoke", "check"), why="several tensors, ragged tails"),
            Case({"P": ((), (0,), (3,))}, why="a scalar, an empty tensor"),
            Case({"P": ((70001,), (2048,), (33, 1000))}, why="several chunks a tensor"),
        ),
        Case({"P": _gpt2()}, torch.float32, use=("bench",), why="GPT-2 124M, 148 tensors"),
        Case({"P": ((2**28,),)}, torch.float32, use=("bench",), why="anchor: 268 million float32"),
    ),
    peer=_fused,
    dtypes=(torch.float32, torch.bfloat16),
    families=("scaled_rows", "all_equal"),
    flops=lambda d: 12 * sum(torch.Size(s).numel() for s in d["P"]),
    validate=_one_row_a_tensor,
)
