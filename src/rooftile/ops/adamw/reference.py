import torch
from torch import Tensor

from rooftile.ops._shared.philox import philox
from rooftile.ops._shared.reference import wide


def _stochastic(x: Tensor, seed: Tensor, t: int) -> Tensor:
    """float32 to one of its two bfloat16 neighbours, each the more likely the nearer: 16 random bits below the last one kept.

    Element i of tensor t takes the low half of word i % 4 of counter t 2^38 + i // 4."""
    count = x.numel()
    words = torch.stack(philox(torch.arange((count + 3) // 4, device=x.device) + (t << 38), seed), -1).reshape(-1)[:count].view(x.shape)
    bits = x.float().contiguous().view(torch.int32).long()
    noisy = ((bits + (words & 0xFFFF)) & ~0xFFFF).to(torch.int32).view(torch.float32)
    return torch.where(x.isfinite(), noisy, x.float())


def adamw(params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor], masters: list[Tensor],
          hyper: Tensor, scale: Tensor | None, seed: Tensor | None, beta1: float, beta2: float, eps: float) -> None:  # fmt: skip
    for t, (p, g, m, v, (lr, decay, correction1, correction2)) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, hyper.unbind(0))):
        gw = wide(g) if scale is None else wide(g) * scale
        mw = beta1 * wide(m) + (1 - beta1) * gw
        vw = beta2 * wide(v) + (1 - beta2) * gw * gw
        pw = wide(masters[t] if masters else p) * (1 - lr * decay)
        pw = pw - lr / correction1 * mw / ((vw / correction2).sqrt() + eps)
        p.copy_(pw if seed is None or p.dtype != torch.bfloat16 else _stochastic(pw, seed, t))
        if masters:
            masters[t].copy_(pw)
        m.copy_(mw)
        v.copy_(vw)


def adamw_measured(params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor], masters: list[Tensor],
                   hyper: Tensor, scale: Tensor | None, seed: Tensor | None, beta1: float, beta2: float, eps: float) -> Tensor:  # fmt: skip
    adamw(params, grads, exp_avgs, exp_avg_sqs, masters, hyper, scale, seed, beta1, beta2, eps)
    return grad_norm(grads)


def grad_norm(grads: list[Tensor]) -> Tensor:
    return torch.stack([wide(g).square().sum() for g in grads]).sum().sqrt()
