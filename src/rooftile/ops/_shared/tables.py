"""Many tensors of any sizes in one launch: a table of where they lie, and a table of which chunk of which tensor a program takes."""

import triton
import triton.language as tl
from torch import Tensor

from rooftile.core.replay import lookup
from rooftile.ops._shared.constants import lasting
from rooftile.ops._shared.launch import cdiv


@triton.jit
def pointer(gTable, t, like, ALIGNED: tl.constexpr):
    """Tensor t of a table of addresses, as a pointer of the type of `like`."""
    address = tl.load(gTable + t)
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address.to(like.dtype, bitcast=True) if address.dtype == like.dtype else address.to(like.dtype)


@triton.jit
def chunk_of(gLayout, P, number, CHUNK: tl.constexpr):
    """Chunk `number` of all: its tensor, its first element there, and that tensor's size."""
    packed = tl.load(gLayout + P + number)
    t = (packed >> 32).to(tl.int32)
    return t, (packed & 0xFFFFFFFF) * CHUNK, tl.load(gLayout + t)


def _whole(*numbers: int) -> tuple[int, ...]:
    return numbers


def _layout(chunk: int, *sizes: int) -> tuple[int, ...]:
    """The sizes of the tensors; then, for every chunk of them, its tensor in the high word and its number in the low."""
    return (*sizes, *((t << 32) | c for t, n in enumerate(sizes) for c in range(cdiv(n, chunk))))


def tables(chunk: int, *lists: list[Tensor]) -> tuple[Tensor, Tensor, int, bool]:
    """Addresses of all lists one after another, the layout of the first (each list has its sizes), how many chunks there are, and whether
    every address is a multiple of 16. Made once for a list of sizes and of addresses, and sent along where the tensors have moved."""
    device = lists[0][0].device
    sizes = tuple(t.numel() for t in lists[0])
    tensors = tuple(t for tensors in lists for t in tensors)
    aligned = all(t.data_ptr() % 16 == 0 for t in tensors)
    addresses, layout = lookup(lasting, _whole, tensors, device), lookup(lasting, _layout, (chunk, *sizes), device)
    return addresses, layout, sum(cdiv(n, chunk) for n in sizes), aligned
