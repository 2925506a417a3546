import torch
from torch import Tensor

from rooftile.core.bind import tensors
from rooftile.core.kernel import Op
from rooftile.ops.concat_kv import cuda_kernels, triton_kernels
from rooftile.ops.concat_kv.spec import SPEC

_concat_kv = Op(SPEC, *triton_kernels.FORWARD, *cuda_kernels.FORWARD)

LAYOUTS = ("BHTD", "BTHD")


def concat_kv(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, cos: Tensor | None = None, sin: Tensor | None = None,
              *, interleaved: bool = False, layout: str = "BHTD") -> None:  # fmt: skip
    """Appends new keys and values to a contiguous cache, in place, turning the keys by their positions on the way:

        k_cache[b, lengths[b] + t] = rope(k[b, t], at lengths[b] + t)        v_cache[b, lengths[b] + t] = v[b, t]

    Args:
        k_cache, v_cache: [B, G, S, D] in "BHTD", [B, S, G, D] in "BTHD": S is the room. float32, bfloat16 or float16; the last axis dense.
        k, v: [B, G, T, D] or [B, T, G, D], the cache's dtype, any strides.
        lengths: int64 or int32 [B], how many keys each sequence has so far. They are not raised: that is the caller's `lengths += T`.
        cos, sin: [P, N] tables as `rope` takes them, or neither: keys that are turned already, or models that turn nothing.
        interleaved: as in `rope`.
        layout: of the caches and of k and v.

    Raises:
        ValueError: new keys that do not fit, with both numbers (on a CPU; a GPU, where looking would mean waiting, does not write them);
        a position outside the tables, with both numbers (on a CPU; a GPU gives NaN for that key); a table without the other; shapes or dtypes that do not fit; a gradient wanted of what is written in place, the tables' too.

    Example:
        >>> cache = torch.zeros(1, 1, 3, 1)
        >>> concat_kv(cache, cache.clone(), torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1), torch.tensor([1]))
        >>> cache.flatten()
        tensor([0., 1., 0.])
    """
    if layout not in LAYOUTS:
        raise ValueError(f"concat_kv: layout is {layout!r}, it takes {' or '.join(LAYOUTS)}")
    heads = {"k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v}
    given = heads | {"cos": cos, "sin": sin}
    tensors("concat_kv", {"cos": cos, "sin": sin}, **heads)
    wanting = [n for n, x in given.items() if x is not None and x.requires_grad]
    if wanting and torch.is_grad_enabled():
        raise ValueError(f"concat_kv: it writes in place and keeps nothing to go back to, but {wanting[0]} requires a gradient")
    if layout == "BHTD" and all(x.dim() == 4 for x in heads.values()):
        heads = {n: x.transpose(1, 2) for n, x in heads.items()}
    _concat_kv(*heads.values(), lengths, cos, sin, interleaved)
