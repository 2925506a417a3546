"""What attention's scores are multiplied by."""

from torch import Tensor


def scale_of(x: Tensor, scale: float | None) -> float:
    """1/sqrt(D) if None. Of what has no D the operator will tell what it is."""
    if scale is not None:
        return scale
    return (x.shape[-1] or 1) ** -0.5 if isinstance(x, Tensor) and not x.is_nested and x.dim() else 1.0
