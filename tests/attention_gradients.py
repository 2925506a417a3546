"""What the tests of attention's gradients for Hopper share: a problem and its answer."""

import torch

from rooftile.ops.attention import reference


def problem(t, s, d, causal, dtype=torch.bfloat16, b=1, h=1, g=0):
    """The arguments of a backward; heads of 192 have values of 128."""
    gen = torch.Generator().manual_seed(t + s)
    dv = 128 if d == 192 else d
    sizes = ((t, h, d), (s, g or h, d), (s, g or h, dv), (t, h, dv))
    q, k, v, dout = (torch.randn(b, n, x, w, generator=gen).to(dtype) for n, x, w in sizes)
    scale = d**-0.5
    return dout, q, k, v, *reference.attention(q, k, v, causal, scale), causal, scale


def far_below_zero(d):
    """lse near -160: past the end keys score 0, and 2^(0 - lse) is inf."""
    dout, q, k, v, *_ = problem(70, 40, d, False)
    q, k = q.abs() * 64 / d**0.5, -k.abs() * 64 / d**0.5
    return dout, q, k, v, *reference.attention(q, k, v, False, 1 / 16), False, 1 / 16


def close(call, got):
    """Within a few roundings of P and dS to 16 bits, as a share of the largest element or of one: NaN is not."""
    wanted = reference.attention_backward(*(x.double() if isinstance(x, torch.Tensor) else x for x in call))
    unit = torch.finfo(call[0].dtype).eps
    return all(float((g.double() - w).abs().max()) <= 2 * unit * max(1.0, float(w.abs().max())) for g, w in zip(got, wanted))
