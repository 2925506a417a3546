import torch
from torch import Tensor

from rooftile.ops._shared.reference import wide


def check_target(target: Tensor, classes: int, ignore_index: int) -> None:
    """A CPU can afford to look. A GPU would have to wait for the answer: there the row's loss becomes NaN."""
    if target.device.type == "cpu" and target.numel():
        wrong = (target != ignore_index) & ((target < 0) | (target >= classes))
        if wrong.any():
            i = int(wrong.nonzero()[0])
            raise ValueError(f"cross_entropy: target[{i}] is {int(target[i])}, but the logits have {classes} classes")


def cross_entropy(logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float,
                  reduction: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    check_target(target, logits.shape[1], ignore_index)
    x, counts, inside, hit = _rows(logits, target, ignore_index, softcap)
    peak = x.amax(1) if x.shape[1] else x.new_zeros(x.shape[0])
    e = (x - peak[:, None]).exp()
    rest = e.masked_fill(hit, 0).sum(1)  # everything but the target: 1 - p of a confident row is lost in the whole sum
    total = e.sum(1)
    known = x.gather(1, target.clamp(0, x.shape[1] - 1)[:, None])[:, 0]
    logsum, miss = total.log(), rest / total
    behind = peak - known  # of a target of infinity it is NaN, as the loss is, not 0
    row = torch.where(behind == 0, rest.log1p(), behind + logsum)
    if label_smoothing:
        near = torch.where(known.isfinite(), known, 0)  # differences to the target's logit: their mean does not cancel
        row = row - label_smoothing * (x - near[:, None]).mean(1)
    if z_loss:
        row = row + z_loss * (peak + logsum).square()
    row, peak, logsum, miss = (torch.where(counts, torch.where(inside, v, torch.nan), 0) for v in (row, peak, logsum, miss))
    count = counts.sum().to(x.dtype) if reduction == "mean" else x.new_ones(())
    loss = row if reduction == "none" else row.sum() / count
    return loss, count, peak, logsum, miss


def cross_entropy_backward(dloss: Tensor, logits: Tensor, target: Tensor, count: Tensor, peak: Tensor, logsum: Tensor, miss: Tensor,
                           ignore_index: int, label_smoothing: float, z_loss: float, softcap: float) -> Tensor:  # fmt: skip
    x, counts, _, hit = _rows(logits, target, ignore_index, softcap)
    p = (x - peak[:, None] - logsum[:, None]).exp()
    g = torch.where(hit, label_smoothing - miss[:, None], p) - label_smoothing / max(1, x.shape[1])
    if z_loss:
        g = g + 2 * z_loss * (peak + logsum)[:, None] * torch.where(hit, 1 - miss[:, None], p)
    if softcap:
        g = g / torch.cosh(wide(logits) / softcap).square()  # 1 - tanh^2, which would cancel
    scale = (dloss / count).expand(x.shape[0])
    return torch.where(counts[:, None], g * scale[:, None], 0).to(logits.dtype)


def cross_entropy_overwrite(dloss: Tensor, logits: Tensor, target: Tensor, count: Tensor, peak: Tensor, logsum: Tensor, miss: Tensor,
                            ignore_index: int, label_smoothing: float, z_loss: float, softcap: float) -> None:  # fmt: skip
    logits.copy_(cross_entropy_backward(dloss, logits, target, count, peak, logsum, miss, ignore_index, label_smoothing, z_loss, softcap))


def cross_entropy_ahead(logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, z_loss: float,
                        softcap: float) -> Tensor:  # fmt: skip
    """Each row's loss; the logits become its gradient for a dloss of 1."""
    settings = (ignore_index, label_smoothing, z_loss, softcap)
    loss, *saved = cross_entropy(logits, target, *settings, "none")
    cross_entropy_overwrite(loss.new_ones(()), logits, target, *saved, *settings)
    return loss


def _rows(logits: Tensor, target: Tensor, ignore_index: int, softcap: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = wide(logits)
    if softcap:
        x = softcap * torch.tanh(x / softcap)
    inside = (target >= 0) & (target < x.shape[1])
    hit = torch.arange(x.shape[1], device=x.device) == target[:, None]
    return x, target != ignore_index, inside, hit
