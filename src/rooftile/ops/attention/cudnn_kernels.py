"""cuDNN's attention, through PyTorch's own binding: the figure to stand beside. Its statistics are the natural-log lse, [B H T 1]."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import DRY

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


def wider_values(call):
    """None, or that values are not as wide as keys."""
    d, dv = call["q"].shape[-1], call["v"].shape[-1]
    return None if d == dv else f"D={d} and values of {dv}: it takes values as wide as keys"


def shared_keys(call):
    """None, or that heads share keys."""
    h, g = call["q"].shape[2], call["k"].shape[2]
    return None if h == g else f"{h} heads on {g} of keys: here every head has its own"


def plain_heads(call):
    return wider_values(call) or shared_keys(call)


def _refuse(call):
    q, (t, s) = call["q"], (call["q"].shape[1], call["k"].shape[1])
    tensors = [call[n] for n in ("dout", "q", "k", "v", "out") if n in call]
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
    if any(x.stride(-1) != 1 or x.data_ptr() % 16 or any(n % 8 or n == 0 for n in x.stride()[:3]) for x in tensors):
        return "a tensor is not made of rows aligned to 16 bytes"
    return None


def too_small(call):
    """A launch through cuDNN's host code, or with TMA descriptors to encode, takes about 30 us of host time where a replayed one takes 8:
    the GPU would wait for the host."""
    q = call["q"]
    operations = 4 * q.numel() * call["k"].shape[1] / (2 if call["causal"] else 1)
    return None if operations >= 4e9 else f"{operations:.1e} operations are done before its host code is; it pays from 4e9"


CUDNN = Kernel("cudnn", attention, "the vendor's library, through PyTorch", _refuse, declines=too_small)
CUDNN_BACKWARD = Kernel("cudnn", attention_backward, "the vendor's library", _refuse, varies="dq is summed by atomics", declines=too_small)
