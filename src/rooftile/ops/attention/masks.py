"""How many masks a call has, and their bits as launchers hand them to kernels."""

from typing import NamedTuple

from torch import Tensor


class Bits(NamedTuple):
    """Masks' bits where a kernel holds scores, of each of its tiles from where to where it is seen or sees, and how many masks from batch to batch and from
    head to head: 0 where all have the same."""

    words: Tensor
    spans: Tensor
    of_batch: int
    of_head: int


def distinct(mask):
    """(of batches, of heads): masks of their own in [B, H, T, S], which may be a view of fewer."""
    return tuple(1 if stride == 0 else n for n, stride in zip(mask.shape, mask.stride()[:2]))


def bits(words, spans, b, h):
    return Bits(words, spans, h if b > 1 else 0, 1 if h > 1 else 0)
