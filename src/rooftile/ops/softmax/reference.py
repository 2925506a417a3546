import torch
from torch import Tensor

from rooftile.ops._shared.reference import wide


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(wide(x), -1).to(x.dtype)


def softmax_backward(dout: Tensor, out: Tensor) -> Tensor:
    g, y = wide(dout), wide(out)
    return (y * (g - (g * y).sum(-1, keepdim=True))).to(out.dtype)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(wide(x), -1).to(x.dtype)


def log_softmax_backward(dout: Tensor, out: Tensor) -> Tensor:
    g, y = wide(dout), wide(out)
    return (g - y.exp() * g.sum(-1, keepdim=True)).to(out.dtype)


def allowed(x: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """What each row of x [..., T, N] may look at; causal rows are aligned to the last column."""
    t, n = x.shape[-2:]
    there = torch.ones((t, n), dtype=torch.bool, device=x.device)
    there = there.tril(n - t) if causal else there
    return there.expand(x.shape) if mask is None else there & mask


def masked_softmax(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    if not x.shape[-1]:
        return torch.empty_like(x)
    v = (wide(x) * scale).masked_fill(~allowed(x, mask, causal), float("-inf"))
    peak = v.amax(-1, keepdim=True)
    e = (v - torch.where(peak == float("-inf"), 0, peak)).exp()
    total = e.sum(-1, keepdim=True)
    return torch.where(total == 0, 0, e / total).to(x.dtype)


def masked_softmax_backward(dout: Tensor, out: Tensor, scale: float, causal: bool) -> Tensor:
    """What the mask hides has out = 0, and with it no gradient; causal rows end where they do."""
    g, y = wide(dout), wide(out)
    if causal:
        seen = allowed(out, None, True)
        g, y = (torch.where(seen, t, 0) for t in (g, y))
    return (softmax_backward(g, y) * scale).to(out.dtype)
