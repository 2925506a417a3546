from numbers import Integral

import torch
from torch import Tensor

from rooftile.core.bind import flag, of_8_bits, tensors
from rooftile.core.kernel import Op
from rooftile.ops._shared.scale import scale_of
from rooftile.ops._shared.window import nearer
from rooftile.ops.attention_decode import chunk_kernels, cuda_kernels, fragments_kernels, triton_kernels
from rooftile.ops.attention_decode.spec import SPEC, SPEC_E4M3

_FEW = (*fragments_kernels.KERNELS, *triton_kernels.KERNELS, *cuda_kernels.KERNELS)
_FEW_E4M3 = (*fragments_kernels.KERNELS_E4M3, *triton_kernels.KERNELS_E4M3, *cuda_kernels.KERNELS_E4M3)
_decode = Op(SPEC, *map(chunk_kernels.few, _FEW), *chunk_kernels.KERNELS)
_decode_e4m3 = Op(SPEC_E4M3, *map(chunk_kernels.few, _FEW_E4M3), *chunk_kernels.KERNELS_E4M3)


def attention_decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, *, block_table: Tensor | None = None,
                     scale: float | None = None, window: int | None = None, softcap: float = 0.0, sinks: Tensor | None = None,
                     k_scale: Tensor | None = None, v_scale: Tensor | None = None,
                     return_lse: bool = False) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of each sequence's newest T tokens over its cache of keys and values, which holds theirs already (`concat_kv` puts them
    there: into pages too, and as 8 bits). One token is decoding, a few are speculation, a thousand chunked prefill: a long prompt is put into the cache piece by
    piece, each of which sees those before it:

        s_tj = scale q_t k_j        out_t = sum_j exp(s_tj) v_j / (exp(sink) + sum_j exp(s_tj))        j <= lengths - T + t

    Args:
        q: [B, T, H, D] float32, bfloat16 or float16; D 16 to 256. Strides are free where the last axis is dense; else it is copied.
        k_cache, v_cache: [B, S, G, D], or with a block table [pages, page size, G, D] with pages of 16 to 256 keys; of q's dtype or
            float8_e4m3fn. H is a multiple of G: query head h reads key head h // (H / G).
        lengths: int32 [B], the keys of each sequence, the T new ones among them. Read on the device: nothing waits, and a CUDA graph
            may be replayed while they grow. What lies behind them is not read.
        block_table: int32 [B, N], the pages of each sequence in order. Entries past its last page decide nothing.
        scale: 1/sqrt(D) if None.
        window: of the keys that a query may see only the last `window`; None: all.
        softcap: scores become softcap tanh(s / softcap); 0: they stay.
        sinks: [H] of q's dtype or float32, a score a head that takes its share of the sum and gives nothing.
        k_scale, v_scale: float32 [G], what a head's 8-bit keys and values are multiplied by; 1 if None.
        return_lse: the logarithm of the sum too.

    Returns:
        out [B, T, H, D] of q's dtype, dense; with return_lse also float32 [B, H, T], the sink counted. A query that sees no key gives zeros,
        and an lse of -inf, or its head's sink. The same bits every time. No gradient.

    Raises:
        ValueError: shapes, dtypes or devices disagree, heads that do not divide; the message names both. A length or a page that its cache does
        not have (on a CPU; a GPU, where looking would mean waiting, gives NaN for that sequence). An argument requires a gradient.

    Source: Dao, Haziza, Massa and Sizov, Flash-Decoding, 2023; pages: Kwon et al., 2023; sinks: Xiao et al., 2023.

    Example:
        >>> cache = torch.ones(1, 8, 1, 16)
        >>> torch.equal(attention_decode(torch.ones(1, 1, 1, 16), cache, cache, torch.tensor([4], dtype=torch.int32)), cache[:, :1])
        True
        >>> (keys, values), one = torch.zeros(2, 3, 16, 1, 16), torch.ones(1, 1, 1, 16)
        >>> lengths, table = torch.tensor([17], dtype=torch.int32), torch.tensor([[2, 0]], dtype=torch.int32)
        >>> concat_kv(keys, values, one, one, lengths, block_table=table)  # the 18th key, into row 1 of page 0
        >>> attention_decode(one, keys, values, lengths + 1, block_table=table, window=1).unique()
        tensor([1.])
    """
    if isinstance(window, bool) or (isinstance(window, Integral) and window < 1):
        raise ValueError(f"attention_decode: window is {window}, it takes 1 or more, or None for all keys")
    flag("attention_decode", "return_lse", return_lse)
    tensors("attention_decode", q=q, k_cache=k_cache, v_cache=v_cache)
    rest = (block_table, sinks, scale_of(q, scale), 0 if window is None else nearer(window), softcap)
    if of_8_bits("attention_decode", k_cache, v_cache, k_scale, v_scale):
        out, lse = _decode_e4m3(q, k_cache.view(torch.uint8), v_cache.view(torch.uint8), lengths, k_scale, v_scale, *rest)
    else:
        out, lse = _decode(q, k_cache, v_cache, lengths, *rest)
    return (out, lse) if return_lse else out
