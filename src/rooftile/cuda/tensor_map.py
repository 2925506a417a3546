"""A tensor as the copy engine of Hopper takes it, cut into boxes: TensorMap in a kernel's parameters (include/rooftile/tma.cuh).

What it says of shapes is checked when it is made; the driver's encoding, 128 bytes with the tensor's address among them, is made at the
launch. A recorded launch makes it anew for the address of each call (`at`), so launchers that use tensor maps are replayable.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from rooftile.core import replay
from rooftile.core.driver import libcuda

BYTES = 128
SLICE_ROWS = 1 << 30  # of a SliceMap's axis of rows, whose end is where any slice's is
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes -> CUtensorMapSwizzle
_TYPES = {  # CUtensorMapDataType; what has no type of its own is moved as bytes or words of its size, which out of bounds are zero too
    torch.uint8: 0, torch.int8: 0, torch.bool: 0, torch.float8_e4m3fn: 0, torch.float8_e5m2: 0, torch.uint16: 1, torch.int16: 1, torch.uint32: 2,
    torch.int32: 3, torch.uint64: 4, torch.int64: 5, torch.float16: 6, torch.float32: 7, torch.float64: 8, torch.bfloat16: 9,
}  # fmt: skip
_L2_PROMOTION = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B: a line of 128 bytes is fetched where a part is asked for


class TensorMap(replay.Addressed):
    """`box` elements of `tensor` at a time, both given outermost first; a kernel's coordinates come innermost first.

    tensor: 2 to 4 axes, as tensor_load has them, the last contiguous; its address and its other strides are multiples of 16 bytes. box: 1 to 256 an axis, the last
    a multiple of 16 bytes. swizzle: 0, 32, 64 or 128 bytes, and then the last axis of the box has exactly so many. ValueError where not.
    """

    def __init__(self, tensor: Tensor, box: Sequence[int], swizzle: int = 0):
        size = tensor.element_size()
        box = tuple(box)
        inner = _check(tensor, box, swizzle, size)
        self.tensor, self.kind, self.box, self.swizzle = tensor, _TYPES[tensor.dtype], box, swizzle
        self.size = tuple(tensor.shape[::-1])
        # the stride of an axis of one element says nothing, and need not be legal
        strides = [s * size if n > 1 else inner for n, s in zip(tensor.shape, tensor.stride())]
        self.strides = tuple(strides[-2::-1])

    def get_device(self) -> int:
        return self.tensor.get_device()

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    def at(self, address: int) -> bytes:
        """As the driver encodes it for the tensor's like at this address."""
        return _encoded(self.kind, address, self.size, self.strides, self.box[::-1], self.swizzle)

    def here(self) -> bytes:
        return self.at(self.tensor.data_ptr())

    def modelled(self, address: int) -> bytes:
        """As the simulator reads it (struct Map in simulator/runtime/async.h)."""
        rank, five, four = len(self.box), lambda t: (*t, 1, 1, 1)[:5], lambda t: (*t, 0, 0, 0)[:4]
        head = struct.pack("Q3I5I", address, rank, self.tensor.element_size(), self.swizzle, *five(self.size))
        return (head + struct.pack("4Q5I", *four(self.strides), *five(self.box[::-1]))).ljust(BYTES, b"\0")


class SliceMap(TensorMap):
    """`rows` rows and `columns` columns at a time of one head of `tensor` [M, H, D], which clip at the end of any slice of its rows: slice_load of
    include/rooftile/slices.cuh says how."""

    def __init__(self, tensor: Tensor, rows: int, columns: int, swizzle: int = 0):
        super().__init__(tensor, (rows, 1, columns), swizzle)
        (d, h, _), (stride_h, stride) = self.size, self.strides
        self.box = (1, 1, 1, rows, columns)
        self.size = (d, SLICE_ROWS, h, 2 * SLICE_ROWS - 1, 2 * SLICE_ROWS - 1)
        self.strides = (stride, stride_h, stride, (tensor.element_size() << 34) - stride)


def _check(tensor: Tensor, box: tuple[int, ...], swizzle: int, size: int) -> int:
    """ValueError for what the engine cannot take; the bytes of a box's line."""
    what = f"a tensor map of {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    if not 2 <= tensor.dim() <= 4:
        raise ValueError(f"{what}: it has {tensor.dim()} axes, a tensor map 2 to 4")
    if tensor.dtype not in _TYPES:
        raise ValueError(f"{what}: the copy engine has no such type")
    if len(box) != tensor.dim():
        raise ValueError(f"{what}: the box {list(box)} has {len(box)} axes, the tensor {tensor.dim()}")
    if not all(1 <= n <= 256 for n in box):
        raise ValueError(f"{what}: the box {list(box)} has an axis that is not from 1 to 256")
    if not all(1 <= n < 2**32 for n in tensor.shape):
        raise ValueError(f"{what}: an axis is not from 1 to {2**32 - 1}")
    if swizzle not in SWIZZLES:
        raise ValueError(f"{what}: the swizzle is 0, 32, 64 or 128 bytes, got {swizzle}")
    inner = box[-1] * size
    if inner % 16 or (swizzle and inner != swizzle):
        raise ValueError(
            f"{what}: a line of the box has {inner} bytes, it must be {f'the {swizzle} of the swizzle' if swizzle else 'a multiple of 16'}"
        )
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{what}: the last axis must be contiguous, its stride is {tensor.stride(-1)}")
    if tensor.data_ptr() % 16:
        raise ValueError(f"{what}: the address must be a multiple of 16, it is {tensor.data_ptr() % 16} beyond one")
    for n, s in zip(tensor.shape[:-1], tensor.stride()[:-1]):
        if n > 1 and (s * size % 16 or not 0 < s * size < 2**40):
            raise ValueError(f"{what}: a stride is {s * size} bytes, it must be a multiple of 16 from 16 to {2**40 - 16}")
    return inner


# ---- the driver --------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)  # an allocator gives the same addresses again and again; encoding costs some 2 us
def _encoded(kind: int, address: int, size: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...], swizzle: int) -> bytes:
    rank = len(size)
    memory = ctypes.create_string_buffer(BYTES + 64)
    offset = -ctypes.addressof(memory) % 64  # the driver wants a multiple of 64
    status = libcuda().cuTensorMapEncodeTiled(
        ctypes.c_void_p(ctypes.addressof(memory) + offset),
        kind,
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*size),
        (ctypes.c_uint64 * (rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,  # no interleave
        SWIZZLES[swizzle],
        _L2_PROMOTION,
        0,  # zeros outside
    )
    if status:
        raise RuntimeError(
            f"the CUDA driver cannot encode a tensor map of {list(size)} in boxes of {list(box)}, innermost first: error {status}"
        )
    return memory.raw[offset : offset + BYTES]
