from math import inf
from numbers import Real

import torch
from torch import Tensor

from rooftile.core.bind import fits, flag, parameter, tensors
from rooftile.core.kernel import Op, ranked
from rooftile.core.register import follows
from rooftile.ops._shared.scale import scale_of
from rooftile.ops._shared.seeds import seeded
from rooftile.ops._shared.window import nearer
from rooftile.ops.attention.banded_kernels import BACKWARD as BANDED_BACKWARD
from rooftile.ops.attention.banded_kernels import VARLEN_BACKWARD as BANDED_VARLEN_BACKWARD
from rooftile.ops.attention.cuda_kernels import BACKWARD as CUDA_BACKWARD
from rooftile.ops.attention.cudnn_kernels import CUDNN, CUDNN_BACKWARD
from rooftile.ops.attention.gluon_launchers import KERNELS as GLUON
from rooftile.ops.attention.gluon_options_launchers import KERNELS as GLUON_OPTIONS
from rooftile.ops.attention.gluon_options_launchers import VARLEN as GLUON_VARLEN
from rooftile.ops.attention.ladder_kernels import BACKWARD as LADDER_BACKWARD
from rooftile.ops.attention.ladder_kernels import FORWARD as LADDER
from rooftile.ops.attention.latent_kernels import BACKWARD as LATENT_BACKWARD
from rooftile.ops.attention.one_pass_kernels import BACKWARD as ONE_PASS_BACKWARD
from rooftile.ops.attention.options_launchers import KERNELS as OPTIONS
from rooftile.ops.attention.options_launchers import KERNELS_BACKWARD as OPTIONS_BACKWARD
from rooftile.ops.attention.options_launchers import VARLEN, VARLEN_BACKWARD
from rooftile.ops.attention.options_spec import SPEC as OPTIONS_SPEC
from rooftile.ops.attention.packed_kernels import BACKWARD as PACKED_BACKWARD
from rooftile.ops.attention.packed_kernels import FORWARD as PACKED
from rooftile.ops.attention.packed_spec import SPEC as PACKED_SPEC
from rooftile.ops.attention.shifted_kernels import KERNELS as SHIFTED
from rooftile.ops.attention.spec import SPEC
from rooftile.ops.attention.split_kernels import KERNELS as SPLIT
from rooftile.ops.attention.split_kernels import OPTIONS as SPLIT_OPTIONS
from rooftile.ops.attention.triton_kernels import KERNELS, KERNELS_BACKWARD
from rooftile.ops.attention.varlen_spec import SPEC as VARLEN_SPEC
from rooftile.ops.attention.wide_kernels import BACKWARD as WIDE_BACKWARD

_attention = Op(
    SPEC,
    *GLUON,
    *SPLIT,
    *SHIFTED,
    CUDNN,
    *KERNELS,
    *LADDER,
    backward=ranked(
        (CUDNN_BACKWARD, *KERNELS_BACKWARD, ONE_PASS_BACKWARD, *CUDA_BACKWARD, *LATENT_BACKWARD, *WIDE_BACKWARD, *LADDER_BACKWARD),
        "cuda.v5_hopper",
        "cuda.v5_hopper_ordered",
        "cuda.v7_hopper_latent",
        "cuda.v6_hopper_wide",
    ),
)
_attention_options = Op(OPTIONS_SPEC, *GLUON_OPTIONS, *SPLIT_OPTIONS, *OPTIONS, backward=(*BANDED_BACKWARD, *OPTIONS_BACKWARD))
_attention_varlen = Op(
    VARLEN_SPEC,
    *GLUON_VARLEN,
    *VARLEN,
    backward=(*BANDED_VARLEN_BACKWARD, *VARLEN_BACKWARD),
)
_attention_qkvpacked = Op(PACKED_SPEC, *PACKED, backward=PACKED_BACKWARD)
_LAYOUTS = ("BTHD", "BHTD")


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None,
              window: tuple[int | None, int | None] | None = None, softcap: float = 0.0, sinks: Tensor | None = None,
              bias: Tensor | None = None, mask: Tensor | None = None, dropout_p: float = 0.0, seed: int | Tensor | None = None,
              generator: torch.Generator | None = None, return_lse: bool = False, deterministic: bool = False,
              layout: str = "BTHD") -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Scores s_ij = scale q_i k_j, for every batch and head; the [T, S] matrix of them is never stored.

        s_ij -> softcap tanh(s_ij / softcap), where there is a cap; -> s_ij + bias_ij; -> -inf where query i does not see key j
        lse_i = log(exp(sink) + sum_j exp(s_ij))        out_i = sum_j dropout(exp(s_ij - lse_i)) v_j

    Args:
        q: [B, T, H, D] float32, bfloat16 or float16; D to 256; wider heads are slow. Strides are free where the last axis is dense; else it is
            copied.
        k, v: [B, S, G, D] and [B, S, G, Dv] of the same dtype. H is a multiple of G: query head h reads key head h / (H / G).
        causal: query i sees keys j <= i + S - T, so that the last query sees every key.
        scale: 1/sqrt(D) if None.
        window: (left, right): query i sees the keys from i + S - T - left to i + S - T + right; None or -1: all on that side.
        softcap: 0: none.
        sinks: [H] of q's dtype or float32, a score a head that takes its share of the sum and gives nothing.
        bias: [B|1, H|1, T, S] of q's dtype, added to the scores. Where it requires a gradient, it gets that summed over the batches and heads
            that share it, in float32. To hide keys is for the mask: a row whose scores all lie at -1e9, say, has no room in float32 for the
            logarithm of its sum, and its gradient comes out as many times too large as it has keys, as that of PyTorch's kernels does.
        mask: boolean, True where a key is seen; any shape that broadcasts to [B, H, T, S]. Lengths of keys: (j < lengths[:, None])[:, None, None];
            documents in a row: (of[:, :, None] == of[:, None, :])[:, None]. On Hopper, at D of 64 and 128, a tile of queries visits the keys from the
            first to the last that any of them sees.
        dropout_p: the probability with which a weight is dropped; what is kept is divided by 1 - dropout_p. The mask is drawn again in the
            backward from (seed, row of out, key), and is the same on every device.
        seed, generator: as in `dropout`; a generator draws the seed in place of PyTorch's default one, and is refused where activation checkpointing
            computes again: the default one is put back for that.
        return_lse: lse too, with a gradient.
        deterministic: the backward repeats to the last bit, by kernels without atomics. torch.use_deterministic_algorithms(True) asks the
            same of all operators, and is faster here.
        layout: "BHTD": q, k, v and the output have their heads before their rows, as views: nothing is copied.

    Returns:
        [B, T, H, Dv] of q's dtype, dense in this order of axes; with return_lse also float32 [B, H, T]. Scores, maxima and sums are float32. A
        query that sees no key gives zeros and an lse of -inf, or its head's sink, and gets and gives no gradient. Where cuDNN or cuda.v5_hopper
        is chosen dq is summed by atomics; where others are chosen the backward repeats to the last bit.

    Raises:
        ValueError: shapes, dtypes or devices disagree, heads that do not divide, a number out of its range; the message names both.

    Source: Dao, FlashAttention-2, 2023; the running softmax is Milakov and Gimelshein's, 2018; sinks: Xiao et al., 2023.

    Example:
        >>> x = torch.ones(1, 2, 1, 16)
        >>> torch.equal(attention(x, x, x, causal=True), x)
        True
    """
    asks = window is not None or sinks is not None or bias is not None or mask is not None
    if not (asks or softcap or dropout_p or return_lse or deterministic) and layout == "BTHD":  # most calls: host time is a feature
        return _attention(q, k, v, causal, scale_of(q, scale))[0]
    if layout not in _LAYOUTS:
        raise ValueError(f"attention: layout is {layout!r}, takes {' or '.join(_LAYOUTS)}")
    flag("attention", "return_lse", return_lse)
    tensors("attention", {"bias": bias, "mask": mask}, q=q, k=k, v=v)
    if layout == "BHTD":
        q, k, v = (_turned(n, x) for n, x in (("q", q), ("k", k), ("v", v)))
    scale = scale_of(q, scale)
    left, right = _window(window, causal)
    wants_lse = return_lse and torch.is_grad_enabled() and any(map(follows, (q, k, v)))
    beyond = left >= 0 or right > 0 or sinks is not None or bias is not None or mask is not None  # what the plain operator says
    if not (beyond or softcap or dropout_p or wants_lse or deterministic):
        out, lse = _attention(q, k, v, right == 0, scale)
    else:
        bias, constant = _biases(bias, q, k)
        drop = None if dropout_p == 0 else _seed(seed, generator, q)
        out, lse = _attention_options(
            q,
            k,
            v,
            sinks,
            bias,
            constant,
            _mask(mask, q, k),
            drop,
            scale,
            left,
            right,
            _cap("attention", softcap),
            _float(dropout_p),
            deterministic,
        )
    out = out.transpose(1, 2) if layout == "BHTD" else out
    return (out, lse) if return_lse else out


def attention_qkvpacked(qkv: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """`attention` of q, k, v = qkv.unbind(2), as one linear layer makes them. Its gradient is one tensor too: none of the three is copied.

    Args:
        qkv: [B, T, 3, H, D] float32, bfloat16 or float16; D as in `attention`. Strides are free where the last axis is dense; else it is copied.
        causal, scale: as in `attention`.

    Returns:
        [B, T, H, D] of qkv's dtype.

    Raises:
        ValueError: a dtype or a number of axes that it does not take, or another number than 3 on the third; the message names both.

    Source: see `attention`.

    Example:
        >>> x = torch.ones(1, 2, 3, 1, 16)
        >>> torch.equal(attention_qkvpacked(x, causal=True), x[:, :, 0])
        True
    """
    return _attention_qkvpacked(qkv, causal, scale_of(qkv, scale))[0]


def attention_varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, *,
                     causal: bool = False, scale: float | None = None, window: tuple[int | None, int | None] | None = None,
                     softcap: float = 0.0, sinks: Tensor | None = None, dropout_p: float = 0.0, seed: int | Tensor | None = None,
                     generator: torch.Generator | None = None, return_lse: bool = False,
                     deterministic: bool = False) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """`attention` of B sequences of any lengths that lie one behind another; each sees its own keys alone.

    Args:
        q: [M, H, D], the queries of all sequences; float32, bfloat16 or float16.
        k, v: [N, G, D] and [N, G, Dv], their keys and values.
        cu_seqlens_q, cu_seqlens_k: int32 or int64 [B + 1]: sequence b has the rows from cu_seqlens[b] to cu_seqlens[b + 1]; the first offset is 0
            and the last M, or N. Read on the device: nothing waits.
        max_seqlen_q, max_seqlen_k: at least the longest. On a GPU rows of out, lse and gradients that a sequence has beyond them are NaN.
        causal, scale, window, softcap, sinks, dropout_p, seed, generator, return_lse, deterministic: as in `attention`. Causal and window are aligned to each
            sequence's last key. Dropout's mask is a function of (seed, row of q, key) and of max_seqlen_k.

    Returns:
        [M, H, Dv] of q's dtype; with return_lse also float32 [H, M], with a gradient. The same bits every time, but where cuda.v5_hopper
        is chosen for the backward: there dq is summed by atomics.

    Raises:
        ValueError: as `attention`; on a CPU also offsets that do not fit their tensor or the longest length.

    Example:
        >>> x, cu = torch.ones(3, 1, 16), torch.tensor([0, 1, 3])
        >>> torch.equal(attention_varlen(x, x, x, cu, cu, 2, 2, causal=True), x)
        True
    """
    flag("attention_varlen", "return_lse", return_lse)
    tensors("attention_varlen", q=q, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    if {cu_seqlens_q.dtype, cu_seqlens_k.dtype} == {torch.int32, torch.int64}:  # a kernel reads both as one
        cu_seqlens_q, cu_seqlens_k = cu_seqlens_q.long(), cu_seqlens_k.long()
    left, right = _window(window, causal)
    drop = None if dropout_p == 0 else _seed(seed, generator, q)
    out, lse = _attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, drop, max_seqlen_q, max_seqlen_k,
                                 scale_of(q, scale), left, right, _cap("attention_varlen", softcap), _float(dropout_p),
                                 deterministic)  # fmt: skip
    return (out, lse) if return_lse else out


def _turned(name: str, x: Tensor) -> Tensor:
    if x.dim() != 4:
        raise ValueError(f"attention: {name} has {x.dim()} axes {list(x.shape)}, needs 4 [B H {'T' if name == 'q' else 'S'} D]")
    return x.transpose(1, 2)


def _window(window: tuple[int | None, int | None] | None, causal: bool) -> tuple[int, int]:
    if window is not None and (not isinstance(window, (tuple, list)) or len(window) != 2):
        raise ValueError(f"attention: window is {window}, it takes 2 numbers: how many keys to the left and how many to the right")
    flag("attention", "causal", causal)
    left, right = (-1 if x is None else x for x in window or (None, None))
    for name, x in (("left", left), ("right", right)):
        parameter("attention", f"the window's {name}", x, int, type(None))
        if x < -1:
            raise ValueError(f"attention: the window's {name} is {x!r}, it takes 0 or more, or None for all keys on that side")
    return nearer(left), 0 if causal else nearer(right)


def _scored(name: str, x: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """x broadcast to the scores, as a view."""
    for n, t in (("q", q), ("k", k)):
        if t.dim() != 4:
            raise ValueError(f"attention: {n} has {t.dim()} axes {list(t.shape)}, needs 4 [B {'T' if n == 'q' else 'S'} H D]")
    shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if x.dim() > 4 or any(n not in (1, s) for n, s in zip(x.shape[::-1], shape[::-1])):
        raise ValueError(f"attention: {name} is {list(x.shape)}, which does not broadcast to the scores, [B, H, T, S] = {list(shape)}")
    return x.expand(shape)


def _cap(name: str, softcap: float) -> float:
    if isinstance(softcap, Real) and not 0 <= softcap < inf:
        raise ValueError(f"{name}: softcap is {softcap}, and must be 0 (none) or more, and finite")
    return _float(softcap)


def _float(x: float) -> float:
    """Of what is no number the operator will tell what it takes."""
    return float(x) if fits(x, float) else x


def _biases(bias: Tensor | None, q: Tensor, k: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """(one with a gradient, one without). The gradient is summed over batches and heads where it is made, over rows and keys by autograd."""
    if bias is None:
        return None, None
    whole = _scored("bias", bias, q, k)
    if not (torch.is_grad_enabled() and follows(bias)):
        return None, whole
    leading = (1,) * (4 - bias.dim()) + tuple(bias.shape[:-2])
    return bias.expand(*leading[:2], *whole.shape[2:]), None


def _mask(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"attention: mask is {str(mask.dtype).removeprefix('torch.')}, takes bool; what is added to the scores is a bias")
    return None if mask is None else _scored("mask", mask, q, k)


def _seed(seed: int | Tensor | None, generator: torch.Generator | None, q: Tensor) -> Tensor:
    if generator is None:
        return seeded(seed, q)
    if seed is not None:
        raise ValueError("attention: a seed and a generator were given, and it takes 1 of the 2")
    if not isinstance(generator, torch.Generator):
        raise ValueError(f"attention: generator is {generator!r}, takes a torch.Generator or None")
    if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() >= 0 and torch.is_grad_enabled():
        what = "the backward pass computes this call again, and a generator would draw another mask than the forward pass's"
        raise RuntimeError(f"attention: {what}: give checkpointing a seed, or leave it to PyTorch's default generator, which it puts back")
    return torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device=q.device, generator=generator)
