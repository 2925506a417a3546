"""A file of its own: who calls attention alone, GPT-2 for one, does not reach rope, and its records do not go stale with it."""

from torch import Tensor

from rooftile.core.bind import tensors
from rooftile.core.kernel import Op
from rooftile.ops._shared.scale import scale_of
from rooftile.ops.attention.rotary_kernels import BACKWARD, FORWARD
from rooftile.ops.attention.rotary_spec import SPEC

_rotary_attention = Op(SPEC, *FORWARD, backward=BACKWARD)


def rotary_attention(qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None, *, kv_heads: int | None = None,
                     interleaved: bool = False, causal: bool = False, scale: float | None = None) -> Tensor:  # fmt: skip
    """`rope` of queries and keys and `attention` of them, on one tensor as one linear layer makes it, with keys that heads may share: q, k, v =
    qkv.split([H, G, G], 2). Its gradient is one tensor too: none of the three is copied.

    Args:
        qkv: [B, T, H + 2 G, D] float32, bfloat16 or float16; D as in `attention`. Strides are free where the last axis is dense; else it is copied.
        cos, sin: [S, N] tables, 2N at most D, float32 or qkv's dtype; `rope_table` makes them. They get no gradient, so none may require one.
        positions: int64 [B, T] or [T], each token's row of the table; without it token t has row t.
        kv_heads: G, the heads of keys and of values; a third of all if None. H is a multiple of it: query head h reads key head h / (H / G).
        interleaved: as in `rope`. causal, scale: as in `attention`.

    Returns:
        [B, T, H, D] of qkv's dtype. Queries and keys are rounded to it when they have been turned, as between two operators.

    Raises:
        ValueError: shapes, dtypes or devices disagree, heads that do not divide, a table that is too short or too wide; the message names both.
        A table requires a gradient.

    Source: Su et al., RoFormer, 2021; see `attention`.

    Example:
        >>> x, (cos, sin) = torch.ones(1, 2, 4, 16), rope_table(2, 16)
        >>> torch.equal(rotary_attention(x, cos, sin, kv_heads=1, causal=True), x[:, :, :2])
        True
    """
    tensors("rotary_attention", {"positions": positions}, qkv=qkv)
    if positions is not None and qkv.dim() == 4 and (positions.dim() == 1 or (positions.dim() == 2 and positions.shape[0] == 1)):
        positions = positions.expand(qkv.shape[0], -1)
    if kv_heads is None and qkv.dim() == 4:
        if qkv.shape[2] % 3:
            raise ValueError(f"rotary_attention: qkv has {qkv.shape[2]} heads in all, no multiple of 3: say kv_heads")
        kv_heads = qkv.shape[2] // 3
    scale = scale_of(qkv, scale)
    return _rotary_attention(qkv, cos, sin, positions, kv_heads, interleaved, causal, scale)[0]
