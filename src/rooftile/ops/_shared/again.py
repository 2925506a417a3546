"""A product that does not keep its factor, where that is cheaply made again from what is kept anyway.

Of everything a Llama block keeps for its backward pass, a fifth is silu(gate) up, the factor of the last product; gate and up, of which it was
made, are kept too. At B=4 T=4096 and the 1.2B shape that is 268 MB a block, 4.3 GB in all; to make them again is one pass over memory.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["linear_of"]


def linear_of(make: Callable[..., Tensor], kept: tuple[Tensor, ...], weight: Tensor, linear: Callable[..., Tensor]) -> Tensor:
    """linear(make(*kept), weight) for a `make` that is pure and keeps what it reads; make(...) [..., K] weight [N, K] -> [..., N].

    Under torch.compile it is just that: what is kept and what is made again is the compiler's to decide.
    """
    made = make(*kept)
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return linear(made, weight)
    return _LinearOf.apply(made, weight, make, linear, *kept)


class _LinearOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, made, weight, make, linear, *kept):
        ctx.make = make
        ctx.save_for_backward(weight, *kept)
        return linear(made, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        weight, *kept = ctx.saved_tensors
        d_weight = grad.flatten(0, -2).t() @ ctx.make(*kept).flatten(0, -2) if ctx.needs_input_grad[1] else None
        return grad @ weight, d_weight, *[None] * (2 + len(kept))
