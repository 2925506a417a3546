"""Tables that differ from another in how the head meets its loss.

    rooftile-lce    rooftile's, with `linear_cross_entropy` in place of `linear` and `cross_entropy` a chunk at a time

Beside `models/loss.py`, which drives two operators through autograd, it is one operator: float32 weights' gradients are added up in place of
one sum a chunk, padding and vocabularies of any length reach the kernels aligned, and torch.compile sees one node.
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
