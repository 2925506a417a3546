"""Which reads are the last to leave the L2: the rule of `policy.cuh`, which says why, for Triton's loads."""

from torch import Tensor

MANY = 64 << 20  # bytes: more than the L2 of any GPU here holds beside what is written


def evict_last(*read: Tensor | None) -> str:
    """The eviction policy of a kernel that reads these tensors, each once."""
    return "evict_last" if sum(t.nbytes for t in read if t is not None) > MANY else ""
