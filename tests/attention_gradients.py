"""What the tests of attention's gradients for Hopper share: a problem, its answer, and kernels with a line changed."""

import torch

from rooftile.cuda.source import Source
from rooftile.ops.attention import reference


def problem(t, s, d, causal, dtype=torch.bfloat16, b=1, h=1, g=0):
    """The arguments of a backward; heads of 192 have values of 128."""
    gen = torch.Generator().manual_seed(t + s)
    dv = 128 if d == 192 else d
    sizes = ((t, h, d), (s, g or h, d), (s, g or h, dv), (t, h, dv))
    q, k, v, dout = (torch.randn(b, n, x, w, generator=gen).to(dtype) for n, x, w in sizes)
    scale = d**-0.5
    return dout, q, k, v, *reference.attention(q, k, v, causal, scale), causal, scale


def close(call, got):
    """Within a few roundings of P and dS to 16 bits, as a share of the largest element or of one: NaN is not."""
    wanted = reference.attention_backward(*(x.double() if isinstance(x, torch.Tensor) else x for x in call))
    unit = torch.finfo(call[0].dtype).eps
    return all(float((g.double() - w).abs().max()) <= 2 * unit * max(1.0, float(w.abs().max())) for g, w in zip(got, wanted))


def saved(source, text, folder):
    path = folder / source.path.name
    path.write_text(text)
    return Source(path)


def rewritten(source, stands, instead, folder):
    """The kernel with other words where `stands` stands, which is once."""
    assert source.text.count(stands) == 1
    return saved(source, source.text.replace(stands, instead), folder)


def without(source, line, ordering, folder):
    """The kernel with one line that orders something, the index of which is given, taken away."""
    lines = source.text.splitlines()
    lines[line] = ordering.sub(";", lines[line], count=1)
    return saved(source, "\n".join(lines) + "\n", folder)
