"""A product that does not keep its factor, where that is cheaply made again from what is kept anyway.

Of everything a Llama block keeps for its backward pass, a fifth is silu(gate) up, the factor of the last product; gate and up, of which it was
made, are kept too. At B=4 T=4096 and the 1.2B shape that is 268 MB a block, 4.3 GB in all; to make them again the gradient's own pass over memory
writes one tensor more. Where gate and up are one product, `gated_mlp` does the same as one operator; a model of Hugging Face keeps them apart.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from rooftile.core.register import once, traced, transforms

__all__ = ["linear_of"]


def linear_of(
    make: Callable[..., Tensor],
    again: Callable[..., tuple[Tensor, ...]],
    kept: tuple[Tensor, ...],
    weight: Tensor,
    linear: Callable[..., Tensor],
) -> Tensor:
    """linear(make(*kept), weight); make(...) [..., K] weight [N, K] -> [..., N]. `again` takes the gradient of what `make` gives, and kept: it
    returns theirs, and leaves what `make` gives in the gradient's place.

    Where it is traced it is just that: what is kept and what is made again is the compiler's to decide.
    """
    if not torch.is_grad_enabled() or traced((weight, *kept)):
        return linear(make(*kept), weight)
    return _LinearOf.apply(weight, make, again, linear, *kept)


class _LinearOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, make, again, linear, *kept):
        ctx.make, ctx.again = make, again
        ctx.save_for_backward(weight, *kept)
        return linear(make(*kept), weight)

    @staticmethod
    @once("a gated perceptron's last product")
    def backward(ctx, grad):
        weight, *kept = ctx.saved_tensors
        made = grad @ weight
        if transforms((grad,)):  # a batch of gradients, in whose place there is no room for one factor
            with torch.enable_grad():
                leaves = [t.detach().requires_grad_() for t in kept]
                factor = ctx.make(*leaves)
            of_kept, made = torch.autograd.grad(factor, leaves, made), factor.detach()
        else:
            of_kept = ctx.again(made, *kept)
        # of flatten there is no batch
        d_weight = grad.reshape(-1, grad.shape[-1]).t() @ made.reshape(-1, made.shape[-1]) if ctx.needs_input_grad[0] else None
        return d_weight, None, None, None, *of_kept[: len(kept)]
