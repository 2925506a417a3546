"""cuDNN's attention, through PyTorch's own binding: the figure to stand beside. Its statistics are the natural-log lse, [B H T 1]."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import DRY
from rooftile.ops.attention.refusals import too_small, unaligned, wider_values

_aten = torch.ops.aten


def _heads(x):
    return x.transpose(1, 2)


def attention(q, k, v, causal, scale):
    out, lse, *_ = torch._scaled_dot_product_cudnn_attention(_heads(q), _heads(k), _heads(v), None, True, 0.0, causal, False, scale=scale)
    return _heads(out).contiguous(), lse.reshape(lse.shape[:3])  # out is laid out like q, so this copies only for a strange q


def attention_backward(dout, q, k, v, out, lse, causal, scale):
    seed = torch.zeros((), dtype=torch.int64, device=q.device)  # read only with dropout
    views = map(_heads, (dout, q, k, v, out))
    grads = _aten._scaled_dot_product_cudnn_attention_backward(*views, lse.contiguous().unsqueeze(-1), seed, seed, None, None, None,
                                                               q.shape[1], k.shape[1], 0.0, causal, scale=scale)  # fmt: skip
    return tuple(_heads(g).contiguous() for g in grads)


def _refuse(call):
    q, (t, s) = call["q"], (call["q"].shape[1], call["k"].shape[1])
    if not q.is_cuda or DRY:
        return f"cuDNN needs a CUDA device, the tensor is on {q.device}"
    if not torch.backends.cudnn.is_available() or torch.cuda.get_device_capability(q.device) < (8, 0):
        return "it needs cuDNN and compute capability 8.0"
    if q.dtype == torch.float32:
        return "cuDNN's attention takes float16 and bfloat16"
    if q.numel() == 0 or s == 0:
        return "there is nothing to compute"
    if q.shape[-1] % 8 or q.shape[-1] > 128:
        return f"D={q.shape[-1]} is not a multiple of 8 up to 128"
    if wider_values(call):
        return wider_values(call)
    if t == 1 or (causal_shifted := call["causal"] and t != s):
        return f"T={t}, S={s}: its causal mask is aligned to the first key" if t != 1 and causal_shifted else "one query is decoding"
    return unaligned(call)


CUDNN = Kernel("cudnn", attention, "the vendor's library, through PyTorch", _refuse, declines=too_small)
CUDNN_BACKWARD = Kernel("cudnn", attention_backward, "the vendor's library", _refuse, varies="dq is summed by atomics", declines=too_small)
