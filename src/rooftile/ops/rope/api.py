import numbers

import torch
from torch import Tensor

from rooftile.core.bind import flag, tensors
from rooftile.core.kernel import Op, ranked
from rooftile.ops.rope import cuda_kernels, triton_kernels
from rooftile.ops.rope.spec import OVERWRITE, SPEC

FIRST = ("cuda.v4_bulk", "cuda.v3_tokens")
_rope = Op(
    SPEC,
    *ranked((*triton_kernels.FORWARD, *cuda_kernels.FORWARD), *FIRST),
    backward=ranked((*triton_kernels.BACKWARD, *cuda_kernels.BACKWARD), *FIRST),
)
_overwrite = Op(OVERWRITE, *ranked((*triton_kernels.OVERWRITE, *cuda_kernels.OVERWRITE), *FIRST))

LAYOUTS = ("BHTD", "BTHD")


def rope_table(length: int, rotary_dim: int, base: float = 10000.0, *, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
    """cos and sin of t base^(-2i / rotary_dim), float32 [length, rotary_dim / 2]: the angles are computed in float64.

    Raises:
        ValueError: a rotary_dim that is odd or below 2, a length below 0, either no whole number, a base that is no number above 0, or infinite.

    Example:
        >>> rope_table(2, 4)[0]
        tensor([[1.0000, 1.0000],
                [0.5403, 0.9999]])
    """
    for name, value in (("length", length), ("rotary_dim", rotary_dim)):
        # torch.jit.trace's number of a shape
        traced = isinstance(value, Tensor) and not torch.compiler.is_compiling() and torch._C._is_tracing()
        if isinstance(value, bool) or not (isinstance(value, (numbers.Integral, torch.SymInt)) or traced):
            raise ValueError(f"rope_table: {name} is {value!r}, takes int")
    if isinstance(base, bool) or not isinstance(base, (numbers.Real, torch.SymFloat, torch.SymInt)):
        raise ValueError(f"rope_table: base is {base!r}, takes float")
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(f"rope_table: rotary_dim is {rotary_dim}, it must be even and 2 at least")
    if length < 0:
        raise ValueError(f"rope_table: length is {length}, it must be 0 at least")
    if not 0 < base < float("inf"):
        raise ValueError(f"rope_table: base is {base}, it must be above 0, and finite")
    frequencies = base ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=device) / rotary_dim)
    angles = torch.arange(length, dtype=torch.float64, device=device)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rope(q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, positions: Tensor | None = None, *, interleaved: bool = False,
         layout: str = "BHTD", inplace: bool = False) -> tuple[Tensor, Tensor] | Tensor:  # fmt: skip
    """Rotary position embedding: pair i of a head at position t is turned by the angle whose cosine and sine are cos[t, i], sin[t, i]:
    (a, b) -> (a cos - b sin, a sin + b cos). The first 2N of D dimensions are turned, the rest are copied.

    Args:
        q, k: queries and keys in `layout`, float32, bfloat16 or float16, any strides; k may have fewer heads, or be None.
        cos, sin: [S, N] tables, 2N at most D, float32 or q's dtype; `rope_table` makes them. They get no gradient, so none may require one.
        positions: int64 [B, T] or [T], each token's row of the table; without it token t has row t.
        interleaved: pairs are neighbours (0, 1), (2, 3), ...: the complex form. Otherwise i and N + i: the half-rotation of GPT-NeoX
            and Hugging Face's Llama.
        layout: "BHTD" or "BTHD". Results have the memory order [B, T, H, D], in which a token's heads lie together; in "BHTD" they are
            views of that.
        inplace: q and k are overwritten and returned; for inference, when no gradient is wanted.

    Returns:
        (q, k) turned, or q alone where k is None. Arithmetic is float32. A GPU gives NaN for a token whose position is outside the table.

    Raises:
        ValueError: a position outside the table, with both numbers (on a CPU); more tokens than the table has rows; shapes or dtypes
        that do not fit; an unknown layout; inplace where a gradient is wanted; a table that requires one.

    Source: Su et al., RoFormer, 2021.

    Example:
        >>> cos, sin = rope_table(2, 2)
        >>> rope(torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]), None, cos, sin)
        tensor([[[[1.0000, 0.0000],
                  [0.5403, 0.8415]]]])
    """
    if layout not in LAYOUTS:
        raise ValueError(f"rope: layout is {layout!r}, it takes {' or '.join(LAYOUTS)}")
    tensors("rope", {"k": k, "positions": positions}, q=q)
    if q.dim() != 4:
        raise ValueError(f"rope: q has {q.dim()} axes {list(q.shape)}, needs 4 [{' '.join(layout)}]")
    alone = k is None
    k = q[..., :0, :, :] if alone and layout == "BHTD" else q[..., :0, :] if alone else k
    if layout == "BHTD" and k.dim() == 4:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    if positions is not None and (positions.dim() == 1 or (positions.dim() == 2 and positions.shape[0] == 1)):
        positions = positions.expand(q.shape[0], -1)
    if inplace:
        flag("rope", "inplace", inplace)
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
            raise ValueError(f"rope: inplace keeps nothing to go back to, but {'q' if q.requires_grad else 'k'} requires a gradient")
        _overwrite(q, k, cos, sin, positions, interleaved)
        out = (q, k)
    else:
        out = _rope(q, k, cos, sin, positions, interleaved)
    if layout == "BHTD":
        out = (out[0].transpose(1, 2), out[1].transpose(1, 2))
    return out[0] if alone else out
