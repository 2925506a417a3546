"""Products of 16-bit numbers by our own kernels for Hopper: the walk of include/rooftile/product.cuh, and the plain product on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from rooftile.core.kernel import Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.cuda.tensor_map import TensorMap
from rooftile.ops._shared.launch import cdiv, processors

V1 = Source.beside(__file__, "product_v1_hopper.cu")
BLOCK_M = 128
VECTOR = 8  # elements of 16 bits in 16 bytes
# A step is BLOCK_N x BLOCK_K beside 128 rows, STAGES are under way, LAG between the two that multiply, GROUP rows of tiles are walked together.
CONFIGS = tuple(
    {"BLOCK_N": n, "BLOCK_K": k, "STAGES": s, "LAG": lag, "GROUP": g}
    for n, k, s, lag, g in ((256, 64, 3, 0, 8), (256, 64, 3, 1, 16), (256, 32, 6, 2, 16), (192, 64, 4, 1, 16))
)  # fmt: skip
LIMITS = Limits(registers=168, shared_bytes=227 * 1024)


def form(config: Mapping[str, Any]) -> str:
    """The last template arguments of a kernel that walks: those of struct Tile."""
    return ", ".join(str(config[key]) for key in ("BLOCK_N", "BLOCK_K", "STAGES", "LAG"))


def walk(
    source: Source, instance: str, config: Mapping[str, Any], x: Tensor, sizes: tuple[int, int, int], arguments: Sequence[Any],
    beside: int = 0, parts: int = 1,
) -> None:  # fmt: skip
    """A block a multiprocessor of x's device, that walks its share of tiles of M x F, sums of K; or as few as walk no more tiles each. Of `parts`
    matrices side by side a tile has as many columns each; `beside`: bytes of shared memory behind the tile."""
    (m, f, k), (n, step, stages) = sizes, (config[key] for key in ("BLOCK_N", "BLOCK_K", "STAGES"))
    tiles = cdiv(m, BLOCK_M) * cdiv(f, n // parts)
    blocks = cdiv(tiles, cdiv(tiles, processors(x)))
    shared = stages * (BLOCK_M + n) * step * 2 + BLOCK_M * n * 2 + beside  # struct Tile: the ring, a tile on its way out
    launch(source, instance, blocks, 384, *arguments, m, f, cdiv(k, step), config["GROUP"], shared=shared)


def along(t: Tensor, rows: int, config: Mapping[str, Any]) -> TensorMap:
    """A factor whose rows are summed over, `rows` of them a step: K_MAJOR."""
    return TensorMap(t, (rows, config["BLOCK_K"]), 2 * config["BLOCK_K"])


def across(t: Tensor, config: Mapping[str, Any]) -> TensorMap:
    """A factor whose columns are summed over, 64 of them at a time: MN_MAJOR."""
    return TensorMap(t, (config["BLOCK_K"], 64), 128)


def product(
    left: Tensor, right: Tensor, bias: Tensor | None = None, out: Tensor | None = None, config: Mapping[str, Any] = CONFIGS[0]
) -> Tensor:
    """left [M, K] right [K, N] + bias, made in `out` or a new tensor; `cannot` says whether. Sums are float32, rounded once."""
    (m, k), n = left.shape, right.shape[1]
    out = left.new_empty(m, n) if out is None else out
    rows = [(left, BLOCK_M), (right.t(), config["BLOCK_N"])]
    majors = ", ".join("K_MAJOR" if _by_rows(t) else "MN_MAJOR" for t, _ in rows)
    maps = TensorMap(out, (64, 64), 128), *(along(t, box, config) if _by_rows(t) else across(t.t(), config) for t, box in rows)
    biased = (left, 0) if bias is None else (bias, n)
    walk(V1, f"product<{CTYPE[left.dtype]}, {majors}, {form(config)}>", config, left, (m, n, k), (*maps, *biased))
    return out


def cannot(left: Tensor, right: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> str | None:
    """Why `product` does not take these as they lie, or None."""
    (m, k), n = left.shape, right.shape[1]
    if left.dtype not in (torch.bfloat16, torch.float16):
        return f"the factors are {str(left.dtype).removeprefix('torch.')}, its products are of bfloat16 or float16"
    if 0 in (m, n, k):
        return f"there is nothing to multiply: M, N, K are {m}, {n}, {k}"
    for name, t in (("left", left), ("right", right)):
        if not (_by_rows(t) or _by_rows(t.t())):
            return f"the {name} factor {list(t.shape)} has strides {list(t.stride())}: neither its rows nor its columns begin at whole 16 bytes each"
    if out is None and n % VECTOR:
        return f"the result is {[m, n]}: rows of {n} elements do not begin at whole 16 bytes, {n} is no multiple of {VECTOR}"
    if out is not None and not _by_rows(out):
        return f"the result {[m, n]} has strides {list(out.stride())}: its rows do not begin at whole 16 bytes each"
    if bias is not None and (n % 2 or not bias.is_contiguous()):
        return f"the bias {[n]} has a stride of {bias.stride(0)}: it is read by two neighbours at a time"
    for name, t, to in (("left factor", left, 16), ("right factor", right, 16), ("result", out, 16), ("bias", bias, 4)):
        if t is not None and not isinstance(t, FakeTensor) and t.data_ptr() % to:
            return f"the {name} begins {t.data_ptr() % to} bytes past a multiple of {to}"
    return off_gpu(left)


def too_few(x: Tensor, m: int, n: int) -> str | None:
    """Why the vendor's products, which cut sums up too, are faster on M x N on this device, or None."""
    tiles, need = cdiv(m, BLOCK_M) * cdiv(n, 256), processors(x)
    return f"{tiles} tiles of {BLOCK_M} x 256 for {need} multiprocessors" if tiles < need else None


def _by_rows(t: Tensor) -> bool:
    """Whether the copy engine takes t's rows: neighbours in each, which begins at whole 16 bytes where there are several."""
    (m, _), (apart, beside) = t.shape, t.stride()
    return beside == 1 and (m == 1 or (apart > 0 and apart % VECTOR == 0))
