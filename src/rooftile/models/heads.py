"""Tables that differ from another in how the head meets its loss.

    rooftile-lce    rooftile's, with `linear_cross_entropy` in place of `linear` and `cross_entropy` a chunk at a time

`models/loss.py` drives two operators through autograd and rounds each chunk's part of the weight's gradient to the compute dtype before
it adds it up. Here it is one operator: the parts are added up in float32 as they are, and torch.compile sees one node.
"""

import dataclasses

from torch import Tensor

from rooftile.models import operators as tables
from rooftile.models.operators import Operators

__all__ = ["KERNELS", "operators"]

LCE = "rooftile-lce"
KERNELS = (*tables.KERNELS, LCE)


def operators(kernels: str) -> Operators:
    """The table for a `--kernels` word."""
    if kernels not in KERNELS:
        raise ValueError(f"kernels is {kernels!r}, must be one of {', '.join(KERNELS)}")
    return _lce() if kernels == LCE else tables.operators(kernels)


def _lce() -> Operators:
    from rooftile.ops.linear_cross_entropy.api import linear_cross_entropy

    def head(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        return linear_cross_entropy(x, weight, target)

    return dataclasses.replace(tables.rooftile_operators(), name=LCE, linear_cross_entropy=head)
