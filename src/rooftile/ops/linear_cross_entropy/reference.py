import torch
from torch import Tensor

from rooftile.ops._shared.reference import wide
from rooftile.ops.cross_entropy.reference import cross_entropy, cross_entropy_backward


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, label_smoothing: float, z_loss: float,
                         softcap: float, reduction: str, chunk: int | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    return cross_entropy(_logits(x, weight, bias), target, ignore_index, label_smoothing, z_loss, softcap, reduction)[:2]


def linear_cross_entropy_backward(dloss: Tensor, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, count: Tensor,
                                  ignore_index: int, label_smoothing: float, z_loss: float, softcap: float,
                                  chunk: int | None) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    logits, settings = _logits(x, weight, bias), (ignore_index, label_smoothing, z_loss, softcap)
    saved = cross_entropy(logits, target, *settings, "none")[2:]
    dx, dweight, dbias = _products(cross_entropy_backward(dloss, logits, target, count, *saved, *settings), x, weight)
    return dx, dweight.to(weight.dtype), x.new_empty(0) if bias is None else dbias.to(bias.dtype)


def linear_cross_entropy_ahead(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, label_smoothing: float,
                               z_loss: float, softcap: float, reduction: str, chunk: int | None,
                               sums: str = "float32") -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """With what the gradients would be were dloss / count 1: gx in x's dtype, gweight in `sums`, gbias in float32."""
    logits, settings = _logits(x, weight, bias), (ignore_index, label_smoothing, z_loss, softcap)
    loss, count, *saved = cross_entropy(logits, target, *settings, reduction)
    with torch.no_grad():
        one = torch.ones_like(count)
        gx, gweight, gbias = _products(cross_entropy_backward(one, logits, target, one, *saved, *settings), x, weight)
    return (
        loss,
        count,
        gx,
        gweight if gweight.dtype == torch.float64 else gweight.to(getattr(torch, sums)),
        gbias if bias is not None else gbias.new_empty(0),
    )


def linear_cross_entropy_ahead_backward(dloss: Tensor, weight: Tensor, bias: Tensor | None, count: Tensor, gx: Tensor, gweight: Tensor,
                                        gbias: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    scale = torch.where(count > 0, dloss / count, 0)  # nothing but padding: no gradient, as PyTorch has it
    dbias = gx.new_empty(0) if bias is None else (gbias * scale).to(bias.dtype)
    return (wide(gx) * scale).to(gx.dtype), (wide(gweight) * scale).to(weight.dtype), dbias


def linear_cross_entropy_frozen(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, label_smoothing: float,
                                z_loss: float, softcap: float, reduction: str, chunk: int | None) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`linear_cross_entropy_ahead` where weight and bias get no gradient."""
    return linear_cross_entropy_ahead(x, weight, target, bias, ignore_index, label_smoothing, z_loss, softcap, reduction, chunk)[:3]


def linear_cross_entropy_frozen_backward(dloss: Tensor, count: Tensor, gx: Tensor) -> Tensor:
    return (wide(gx) * torch.where(count > 0, dloss / count, 0)).to(gx.dtype)


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In x's dtype, as two operators would hand them over: float32 weights are rounded to it first."""
    out = wide(x) @ wide(weight.to(x.dtype)).t()
    return (out if bias is None else out + wide(bias.to(x.dtype))).to(x.dtype)


def _products(g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wide_g = wide(g)
    return (wide_g @ wide(weight.to(x.dtype))).to(x.dtype), wide_g.t() @ wide(x), wide_g.sum(0)
