"""A seed as a user gives it."""

from torch import Tensor

from rooftile.core.bind import fits
from rooftile.ops._shared.philox import drawn


def seeded(seed: int | Tensor | None, x: Tensor) -> Tensor:
    """One int64 on x's device: the seed, of a number that torch.manual_seed takes its lower 64 bits, or one from PyTorch's default generator there."""
    if isinstance(seed, Tensor):
        if seed.numel() != 1:
            raise ValueError(f"seed has {seed.numel()} numbers, it takes 1")
    elif seed is not None:
        if not fits(seed, int) or not -(2**63) <= seed < 2**64:
            raise ValueError(f"seed is {seed!r}, it takes an integer from -2^63 to 2^64 - 1, as torch.manual_seed does")
        seed = (int(seed) + 2**63) % 2**64 - 2**63
    return drawn(seed, x)
