"""The head and its loss a few rows at a time, so that the logits never exist as a whole.

At B=32 T=1024 V=50304 the bfloat16 logits weigh 3.3 GB and their gradient as much again: half of what a GPT-2 124M step needs.
The loss is the end of the graph, so its gradient is known up to one scalar the moment a row is done. Each chunk is therefore
carried through to d_x and d_weight in the forward pass and its logits are dropped; the backward pass only scales.
The matrix products are the same three as without chunks: this costs adding up d_weight once a chunk (float32), nothing else.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["chunked_linear_cross_entropy"]

IGNORE = -100  # the target that counts for nothing, as in torch.nn.functional.cross_entropy
CHUNK_ROWS = 8192  # 0.8 GB of bfloat16 logits at V=50304: still far more rows than fill the machine


def chunked_linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, *, linear: Callable, cross_entropy: Callable, chunk_rows: int = CHUNK_ROWS
) -> Tensor:
    """mean over m of  logsumexp(x_m W^T) - (x_m W^T)[target_m],  the rows with target -100 left out.

    x [M, K] in the working dtype; weight [V, K], cast to x's dtype for the products, its gradient summed in its own dtype;
    target [M] int64. Returns a float32 scalar (nan when every target is -100, like PyTorch). First derivatives only.
    """
    if x.dim() != 2 or target.shape != x.shape[:1]:
        raise ValueError(f"x must be [M, K] and target [M]; x has shape {tuple(x.shape)}, target {tuple(target.shape)}")
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _ChunkedLoss.apply(x, weight, target, linear, cross_entropy, chunk_rows)
    low = weight.to(x.dtype)
    parts = [
        cross_entropy(linear(rows, low), wanted, reduction="none").float().sum()
        for rows, wanted in zip(x.split(chunk_rows), target.split(chunk_rows))
    ]
    return torch.stack(parts).sum() / (target != IGNORE).sum()


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, target, linear, cross_entropy, chunk_rows):
        scale = 1.0 / (target != IGNORE).sum().float()  # stays on the device: no synchronisation
        low = weight.detach().to(x.dtype).requires_grad_()
        d_x, d_weight = torch.empty_like(x), torch.zeros_like(weight)
        loss = torch.zeros((), dtype=torch.float32, device=x.device)
        for start in range(0, x.shape[0], chunk_rows):
            rows = slice(start, start + chunk_rows)
            with torch.enable_grad():
                part = x[rows].detach().requires_grad_()
                # reduction "none": a sum over thousands of rows in bfloat16 would keep three digits
                losses = cross_entropy(linear(part, low), target[rows], reduction="none")
                total = losses.float().sum() * scale
            d_part, d_low = torch.autograd.grad(total, (part, low))
            d_x[rows] = d_part
            d_weight += d_low
            loss += total.detach()
            del losses, total, d_low  # before the next chunk's logits are made, not after
        ctx.save_for_backward(d_x, d_weight)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        d_x, d_weight = ctx.saved_tensors
        return d_x * grad, d_weight * grad, None, None, None, None
