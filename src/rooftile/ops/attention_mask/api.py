import torch
from torch import Tensor

from rooftile.core.bind import dtype_name
from rooftile.core.kernel import Op, ranked
from rooftile.ops.attention_mask import cuda_kernels, triton_kernels
from rooftile.ops.attention_mask.spec import DTYPES, SPEC

_attention_mask = Op(SPEC, *ranked((*triton_kernels.FORWARD, *cuda_kernels.FORWARD), "cuda.v3_rows"))


def attention_mask(lengths: Tensor, queries: int, keys: int | None = None, *, causal: bool = False, repeats: int = 1,
                   to: torch.dtype = torch.bool) -> Tensor:  # fmt: skip
    """Who may look at whom in a padded batch: query t sees key s where s < length, and, causal, s <= t + keys - queries.

    Args:
        lengths: int64 or int32 [B], the keys each sequence has; or [B, G], the keys each of its G key heads has.
        queries, keys: the padded lengths T and S; keys = queries unless given. Causal rows are aligned to the last key.
        repeats: query heads that share a key head: head h of the result belongs to key head h // repeats.
        to: torch.bool (True: may look), or float32, bfloat16 or float16 (0 where it may, -inf where not), to be added to scores.

    Returns:
        [B, G * repeats, T, S], with G = 1 for lengths [B]: a mask of `scaled_dot_product_attention`. No gradient.

    Raises:
        ValueError: a length below 0 or above `keys`, with both (on a CPU; a GPU, where looking would mean waiting, takes it for the
        nearest that there is); another dtype.

    Example:
        >>> attention_mask(torch.tensor([1]), 2, causal=True)
        tensor([[[[ True, False],
                  [ True, False]]]])
    """
    lengths = lengths[:, None] if isinstance(lengths, Tensor) and lengths.dim() == 1 else lengths
    name = dtype_name("attention_mask", "to", to, DTYPES)
    return _attention_mask(lengths, queries, queries if keys is None else keys, causal, repeats, name)
