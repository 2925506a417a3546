"""What several kernels of attention refuse or decline, each in one sentence."""

import torch
from torch._subclasses.fake_tensor import FakeTensor


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


def unaligned(call):
    """None, or which tensor is not rows of adjacent 16-bit numbers that begin at multiples of 16 bytes, as cuDNN and Hopper's copy engine want them."""
    for n in ("dout", "q", "k", "v", "out"):
        x = call.get(n)
        if x is None:
            continue
        past = 0 if isinstance(x, FakeTensor) else x.data_ptr() % 16
        if x.stride(-1) != 1 or past or any(s % 8 or s == 0 for s in x.stride()[:3]):
            return f"{n} with strides {list(x.stride())} at {past} bytes past a multiple of 16 is not made of rows aligned to 16 bytes"
    return None


def for_the_copy_engine(call):
    """None, or why wgmma and TMA have nothing to do with these tensors."""
    q = call["q"]
    if q.dtype == torch.float32:
        return "its products are of 16-bit numbers, the tensor is float32"
    if q.numel() == 0 or call["k"].numel() == 0:
        return "there is nothing to compute"
    return unaligned(call)


def too_small(call):
    """A launch through cuDNN's host code, or with TMA descriptors to encode, takes about 30 us of host time where a replayed one takes 8:
    the GPU would wait for the host."""
    q = call["q"]
    operations = 4 * q.numel() * call["k"].shape[1] / (2 if call["causal"] else 1)
    return None if operations >= 4e9 else f"{operations:.1e} operations are done before its host code is; it pays from 4e9"
