import torch
from torch import Tensor

from rooftile.core.bind import of_8_bits, tensors
from rooftile.core.kernel import Op, ranked
from rooftile.ops.concat_kv import cuda_kernels, triton_kernels
from rooftile.ops.concat_kv.spec import SPEC, SPEC_E4M3

_concat_kv = Op(SPEC, *ranked((*triton_kernels.FORWARD, *cuda_kernels.FORWARD), "cuda.v3_tokens"))
_concat_kv_e4m3 = Op(SPEC_E4M3, *ranked((*triton_kernels.FORWARD_E4M3, *cuda_kernels.FORWARD_E4M3), "cuda.v3_tokens"))

LAYOUTS = ("BHTD", "BTHD")


def concat_kv(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, cos: Tensor | None = None, sin: Tensor | None = None,
              *, interleaved: bool = False, layout: str = "BHTD", block_table: Tensor | None = None, k_scale: Tensor | None = None,
              v_scale: Tensor | None = None) -> None:  # fmt: skip
    """Writes new keys and values behind those that a cache holds, in place, turning the keys by their positions on the way:

        k_cache[b, lengths[b] + t] = rope(k[b, t], at lengths[b] + t)        v_cache[b, lengths[b] + t] = v[b, t]

    and in pages of S keys, where n = lengths[b] + t:

        k_cache[block_table[b, n // S], n % S] = rope(k[b, t], at n)        v_cache[block_table[b, n // S], n % S] = v[b, t]

    Args:
        k_cache, v_cache: [B, G, S, D] in "BHTD", [B, S, G, D] in "BTHD": S is the room. With a block table [P, S, G, D] in either, P pages of
            16 to 256 keys, as `attention_decode` reads them. k's dtype or float8_e4m3fn; the last axis dense.
        k, v: [B, G, T, D] or [B, T, G, D], float32, bfloat16 or float16, any strides.
        lengths: int64 or int32 [B], how many keys each sequence has so far. They are not raised: that is the caller's `lengths += T`.
        cos, sin: [M, N] tables as `rope` takes them, or neither: keys that are turned already, or models that turn nothing.
        interleaved: as in `rope`.
        layout: of k and v, and of contiguous caches; pages have but one.
        block_table: int32 [B, L], the pages of each sequence in order. Entries of pages that get no new key decide nothing. No two sequences
            may write to one page at the same place: which of the two stays is not said.
        k_scale, v_scale: float32 [G], what a head's 8-bit keys and values are to be multiplied by when they are read; 1 if None. Written is
            the turned key, or the value, times fl32(1 / scale), rounded as `quantize` rounds: once, to nearest, ties to even, saturating
            at 448; a NaN stays one.

    Raises:
        ValueError: new keys that do not fit, or a page that the cache does not have, with both numbers (on a CPU; a GPU, where looking would
        mean waiting, does not write them); a position outside the tables, with both numbers (on a CPU; a GPU gives NaN for that key); a table
        without the other; shapes or dtypes that do not fit; scales of a cache that is not of 8 bits; a gradient wanted of what is written in
        place, the tables' and the scales' too.

    Source: pages: Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention, 2023.

    Example:
        >>> cache = torch.zeros(1, 1, 3, 1)
        >>> concat_kv(cache, cache.clone(), torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1), torch.tensor([1]))
        >>> cache.flatten()
        tensor([0., 1., 0.])
        >>> (keys, values), one = torch.zeros(2, 3, 16, 1, 1).to(torch.float8_e4m3fn), torch.ones(1, 1, 1, 1)
        >>> table = torch.tensor([[2, 0]], dtype=torch.int32)
        >>> concat_kv(keys, values, one, one, torch.tensor([17]), block_table=table, k_scale=torch.tensor([0.25]))
        >>> keys[0, 1], values[0, 1]  # the 18th key is in row 1 of page 0
        (tensor([[4.]], dtype=torch.float8_e4m3fn), tensor([[1.]], dtype=torch.float8_e4m3fn))
    """
    if layout not in LAYOUTS:
        raise ValueError(f"concat_kv: layout is {layout!r}, it takes {' or '.join(LAYOUTS)}")
    heads = {"k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v}
    others = {"cos": cos, "sin": sin, "k_scale": k_scale, "v_scale": v_scale}
    tensors("concat_kv", {**others, "block_table": block_table}, **heads)
    wanting = [n for n, x in (heads | others).items() if x is not None and x.requires_grad]
    if wanting and torch.is_grad_enabled():
        raise ValueError(f"concat_kv: it writes in place and keeps nothing to go back to, but {wanting[0]} requires a gradient")
    narrow = of_8_bits("concat_kv", k_cache, v_cache, k_scale, v_scale)
    if layout == "BHTD" and all(x.dim() == 4 for x in heads.values()):
        heads = {n: x.transpose(1, 2) if block_table is None or n in ("k", "v") else x for n, x in heads.items()}
    if narrow:
        _concat_kv_e4m3(*heads.values(), lengths, cos, sin, interleaved, block_table, k_scale, v_scale)
    else:
        _concat_kv(*heads.values(), lengths, cos, sin, interleaved, block_table)
