from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from rooftile.core.kernel import Op
from rooftile.ops.adamw.spec import SPEC
from rooftile.ops.adamw.triton_kernels import FORWARD

_adamw = Op(SPEC, *FORWARD)


def adamw(params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor], hyper: Tensor, *,
          beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:  # fmt: skip
    """One AdamW step on a list of tensors, in place and in one launch.

        m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
        p = p (1 - lr decay) - lr / c1 * m / (sqrt(v / c2) + eps)

    Args:
        params, grads, exp_avgs, exp_avg_sqs: lists of P tensors, pairwise of one shape, all of one dtype (float32 or bfloat16).
        hyper: [P, 4] float32 on the same device: lr, decay, c1 = 1 - beta1^step, c2 = 1 - beta2^step of each tensor.

    Raises:
        ValueError: lists of different lengths, shapes, dtypes or devices.

    Source: Loshchilov and Hutter, Decoupled weight decay regularization, 2019.
    """
    if params:
        _adamw(params, grads, exp_avgs, exp_avg_sqs, hyper, beta1, beta2, eps)


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW with the whole model in one launch a step; state dicts go both ways.

    Args:
        params, lr, betas, eps, weight_decay: as torch.optim.AdamW has them; groups may differ in lr and weight_decay.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2):  # fmt: skip
        for name, value, good in (("lr", lr, lr >= 0), ("eps", eps, eps >= 0), ("weight_decay", weight_decay, weight_decay >= 0)):
            if not good:
                raise ValueError(f"AdamW: {name} is {value}, must be at least 0")
        if not all(0 <= b < 1 for b in betas):
            raise ValueError(f"AdamW: betas are {betas}, both must be in [0, 1)")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for (_, _, beta1, beta2, eps), members in self._together().items():
            self._launch(members, beta1, beta2, eps)
        return loss

    def _together(self) -> dict[tuple[Any, ...], list[tuple[Tensor, dict[str, Any]]]]:
        """Parameters that one launch can take: same device, dtype, betas and eps, whatever their group."""
        lists: dict[tuple[Any, ...], list[tuple[Tensor, dict[str, Any]]]] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.grad.is_sparse:
                    raise ValueError(f"AdamW: the gradient of a parameter {list(p.shape)} is sparse, takes dense ones")
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float32)
                    state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                    state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                lists.setdefault((p.device, p.dtype, *group["betas"], group["eps"]), []).append((p, group))
        return lists

    def _launch(self, members: list[tuple[Tensor, dict[str, Any]]], beta1: float, beta2: float, eps: float) -> None:
        states = [self.state[p] for p, _ in members]
        rows = []
        for (_, group), state in zip(members, states):
            state["step"] += 1
            step = float(state["step"])
            rows.append((float(group["lr"]), group["weight_decay"], 1 - beta1**step, 1 - beta2**step))
        device = members[0][0].device
        hyper = torch.tensor(rows, dtype=torch.float32, pin_memory=device.type == "cuda").to(device, non_blocking=True)
        adamw([p for p, _ in members], [p.grad for p, _ in members], [s["exp_avg"] for s in states],
              [s["exp_avg_sq"] for s in states], hyper, beta1=beta1, beta2=beta2, eps=eps)  # fmt: skip
