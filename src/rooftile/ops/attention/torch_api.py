"""`attention` by the names and conventions that PyTorch has for it: a function and a module that stand in for PyTorch's own."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rooftile.core.bind import flag, tensors
from rooftile.ops._shared.reference import wide
from rooftile.ops.attention.api import _attention_options, attention


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention, with its arguments and its conventions.

    Args:
        query, key, value: [..., H, T, D], [..., G, S, D], [..., G, S, Dv]; any number of leading axes, also none, or no heads: [T, D].
        attn_mask: boolean, True where a key is seen, or of query's dtype and added; broadcasts to [..., H, T, S].
        is_causal: query i sees keys j <= i, counted from the first of both, as in PyTorch (`attention` counts from the last).
        enable_gqa: G may be less than H, which must be a multiple.

    Returns:
        [..., H, T, Dv]. A query that sees no key gives zeros.

    Raises:
        ValueError: as `attention`; a mask and is_causal at once, as in PyTorch; shared heads without enable_gqa; a flag that is no bool.

    Example:
        >>> x = torch.ones(1, 1, 2, 16)
        >>> torch.equal(scaled_dot_product_attention(x, x, x, is_causal=True), x)
        True
    """
    for name, given in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        flag("scaled_dot_product_attention", name, given)
    if attn_mask is not None and is_causal:
        raise ValueError("scaled_dot_product_attention: attn_mask and is_causal=True were given, and it takes 1 of the 2")
    tensors("scaled_dot_product_attention", {"attn_mask": attn_mask}, query=query, key=key, value=value)
    q, k, v = (_four(n, x) for n, x in (("query", query), ("key", key), ("value", value)))
    if q.shape[1] != k.shape[1] and not enable_gqa:
        raise ValueError(f"scaled_dot_product_attention: {q.shape[1]} heads on {k.shape[1]} of keys: that is for enable_gqa=True")
    t, s = q.shape[2], k.shape[2]
    if is_causal and t < s:  # from the first key on: no query sees those past the T-th
        k, v, s = k[:, :, :t], v[:, :, :t], t
    mask, lead = attn_mask, query.shape[:-3]
    if query.dim() > 4 and not (key.shape[:-3] == value.shape[:-3] == lead):
        said = ", ".join(str(list(x.shape)) for x in (query, key, value))
        raise ValueError(f"scaled_dot_product_attention: query, key and value are {said}: all axes before the last 3 must be the same")
    if mask is not None and len(lead) > 1 and mask.shape[:-3] not in ((), (1,)):
        if mask.dim() - 3 > len(lead) or any(n not in (1, m) for n, m in zip(mask.shape[-4::-1], lead[::-1])):
            raise ValueError(
                f"scaled_dot_product_attention: attn_mask is {list(mask.shape)}, which does not broadcast to {[*lead, q.shape[1], t, k.shape[2]]}"
            )
        mask = mask.expand(*lead, *mask.shape[-3:]).flatten(0, -4)
    more = {} if mask is None else {"mask": mask} if mask.dtype == torch.bool else {"bias": mask}
    out = attention(q, k, v, scale=scale, causal=is_causal and t == s, dropout_p=dropout_p, layout="BHTD",
                    window=(None, t - s) if is_causal and t > s else None, **more)  # fmt: skip
    return out.reshape(*query.shape[:-1], value.shape[-1])


def _four(name: str, x: Tensor) -> Tensor:
    """[B, H, rows, D], a view where there is one."""
    if x.dim() < 2:
        raise ValueError(f"scaled_dot_product_attention: {name} has {x.dim()} axes {list(x.shape)}, needs 2 at least")
    return x.flatten(0, -4) if x.dim() > 4 else x[(None,) * (4 - x.dim())]


class MultiheadAttention(nn.MultiheadAttention):
    """torch.nn.MultiheadAttention, whose arguments, parameters and state dict it has, on `attention`.

    variant="flash" never stores the scores, in `attention`'s dtypes; "standard" is the definition, with [B, H, T, S] weights in memory, in float64 too. Where the weights themselves are
    asked for (need_weights=True; here the default is False) they must be stored, so that call takes the standard way whichever it is. A query
    that sees no key gives out_proj's bias, where PyTorch's gives NaN. The masks are as in PyTorch: True is a key that is not seen.

    Example:
        >>> attend = MultiheadAttention(32, 4, batch_first=True)
        >>> attend(x := torch.randn(2, 5, 32), x, x, is_causal=True)[0].shape
        torch.Size([2, 5, 32])
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
                 add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
                 device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *, variant: str = "flash"):  # fmt: skip
        if add_bias_kv or add_zero_attn:
            raise ValueError(
                "MultiheadAttention: add_bias_kv and add_zero_attn are not supported: a key that all see is what sinks are for"
            )
        if variant not in ("flash", "standard"):
            raise ValueError(f"MultiheadAttention: variant is {variant!r}, takes flash or standard")
        if dropout != 0:
            _attention_options.takes(p=dropout)
        super().__init__(embed_dim, num_heads, dropout, bias, kdim=kdim, vdim=vdim, batch_first=batch_first, device=device, dtype=dtype)
        self.variant = variant

    def extra_repr(self) -> str:
        said = f"{self.embed_dim}, num_heads={self.num_heads}, dropout={self.dropout}, batch_first={self.batch_first}, variant={self.variant!r}"
        return said + "".join(f", {name}={n}" for name, n in (("kdim", self.kdim), ("vdim", self.vdim)) if n != self.embed_dim)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = False,
                attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """(out, weights or None). is_causal without a mask is enough, and aligned to the last key; beside a mask it is a hint, which the mask says
        already, as in PyTorch."""
        masks = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
        tensors("MultiheadAttention", masks, query=query, key=key, value=value)
        axes = query.dim(), key.dim(), value.dim()
        if axes not in ((3, 3, 3), (2, 2, 2)):
            raise ValueError(f"MultiheadAttention: query, key and value have {axes} axes, it takes 3 of each, or 2 without a batch")
        for name, x, features in (("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim)):
            if x.shape[-1] != features:
                raise ValueError(f"MultiheadAttention: {name} is {list(x.shape)}, its last axis must be {features}")
        single, alone = query.dim() == 2, query is key and key is value
        if single:
            query, key, value = (x.unsqueeze(0 if self.batch_first else 1) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (x.unflatten(-1, (self.num_heads, self.head_dim)) for x in self._projected(query, key, value, alone))
        mask, bias = self._seen(attn_mask, key_padding_mask, q, k)
        p, causal = self.dropout if self.training else 0.0, is_causal and attn_mask is None
        if need_weights or self.variant == "standard":
            out, weights = _standard(q, k, v, mask, bias, p, causal)
        else:
            out, weights = attention(q, k, v, mask=mask, bias=bias, dropout_p=p, causal=causal), None
        out = self.out_proj(out.flatten(2))
        out = out if self.batch_first else out.transpose(0, 1)
        if not need_weights:
            weights = None
        elif average_attn_weights and weights is not None:
            weights = weights.mean(1)
        if single:
            return out.squeeze(0 if self.batch_first else 1), None if weights is None else weights[0]
        return out, weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor, alone: bool) -> tuple[Tensor, ...]:
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        if not self._qkv_same_embed_dim:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif alone:
            return F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)  # one product; the three are views of it
        else:
            weights = self.in_proj_weight.chunk(3)
        return tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))

    def _seen(self, attn_mask: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """(True where a key is seen, what is added), each a broadcast [B|1, H|1, T|1, S|1]."""
        seen: Tensor | None = None
        added: Tensor | None = None
        b, t, h, s = *q.shape[:3], k.shape[1]
        for name, mask, shape in (("attn_mask", attn_mask, [b * h, t, s]), ("key_padding_mask", padding, [b, s])):
            if mask is None:
                continue
            if mask.dtype != torch.bool and not mask.is_floating_point():
                raise ValueError(
                    f"MultiheadAttention: {name} is {str(mask.dtype).removeprefix('torch.')}, takes bool, True at a key that is not seen, or floats, which are added"
                )
            if list(mask.shape) == shape:
                mask = mask.unflatten(0, (b, h)) if name == "attn_mask" else mask[:, None, None]
            elif name != "attn_mask" or mask.dim() not in (2, 4) or any(n not in (1, m) for n, m in zip(mask.shape[::-1], (s, t, h, b))):
                raise ValueError(
                    f"MultiheadAttention: {name} is {list(mask.shape)}, it must be {shape}{f' or {[t, s]}' if name == 'attn_mask' else ''}"
                )
            if mask.dtype == torch.bool:
                seen = ~mask if seen is None else seen & ~mask
            else:
                added = mask.to(q.dtype) if added is None else added + mask.to(q.dtype)
        return seen, added


def _standard(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, p: float, causal: bool) -> tuple[Tensor, Tensor]:
    """The definition: (out, weights), both through memory."""
    scores = wide(torch.einsum("bthd,bshd->bhts", q, k)) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores.masked_fill(scores.new_ones(scores.shape[2:], dtype=torch.bool).triu(k.shape[1] - q.shape[1] + 1), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    nothing = (scores == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0).to(v.dtype)
    weights = F.dropout(weights, p) if p else weights
    return torch.einsum("bhts,bshd->bthd", weights, v), weights
