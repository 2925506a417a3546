"""Which elements a dropout keeps: a function of (seed, element), the same for every operator that drops, on every device."""

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


def threshold(p: float) -> int:
    """An element is kept iff its random 32-bit word is not below this."""
    return int(p * 2.0**32)


def scale(p: float) -> float:
    """What is kept is multiplied by this."""
    return 1 / (1 - p) if p < 1 else 0.0


def philox(counter: Tensor, seed: Tensor) -> list[Tensor]:
    """Philox4x32-7, the fewest rounds that pass BigCrush (Salmon et al., 2011): four random words, as int64 in [0, 2^32), for each 64-bit
    counter; the two halves of the seed are the key.

    int64 products wrap, but their 64 bits are those of the unsigned product.
    """
    a, b = counter & _WORD, (counter >> 32) & _WORD
    c, d = torch.zeros_like(a), torch.zeros_like(a)
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(7):
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (((right >> 32) & _WORD) ^ b ^ k0), right & _WORD, (((left >> 32) & _WORD) ^ d ^ k1), left & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return [a, b, c, d]


def kept(shape: torch.Size, seed: Tensor, p: float) -> Tensor:
    """The mask: element i of the row-major order takes word i % 4 of counter i // 4."""
    count = shape.numel()
    words = torch.stack(philox(torch.arange((count + 3) // 4, device=seed.device), seed), -1)
    return (words.reshape(-1)[:count] >= threshold(p)).view(shape)


def drawn(seed: int | Tensor | None, x: Tensor) -> Tensor:
    """The seed as a tensor of one int64 on x's device; without one, from PyTorch's default generator there, without waiting."""
    if seed is None:
        return torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device=x.device)
    if not isinstance(seed, Tensor):
        return torch.full((), seed, dtype=torch.int64, device=x.device)
    return seed.reshape(()) if seed.dim() else seed
