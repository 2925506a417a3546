"""Layers whose parameters something else computes with, in their place."""

from torch import Tensor, nn


def bare(layer: nn.Module, kind: type) -> bool:
    """Whether it does what its kind does: nothing is around it, no forward of its own, no hook of any kind."""
    own = "forward" in vars(layer) or "_old_forward" in vars(layer)
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return type(layer) is kind and not own and not hooks


def plain(layer: nn.Module) -> bool:
    """Whether a linear layer's weight says all that it does: it is bare, and the weight no tensor of a class of its own, as a quantised or a sharded one
    is, which knows how it is multiplied by and is no operator's argument."""
    return bare(layer, nn.Linear) and type(layer.weight) in (Tensor, nn.Parameter)
