import torch
from torch import Tensor

from rooftile.core.kernel import Op, ranked
from rooftile.ops.softmax import cuda_kernels, triton_kernels
from rooftile.ops.softmax.spec import SPEC

_softmax = Op(
    SPEC,
    *ranked((*triton_kernels.FORWARD, *cuda_kernels.FORWARD), "cuda.v7_cluster", "cuda.v5_online"),
    backward=ranked((*triton_kernels.BACKWARD, *cuda_kernels.BACKWARD), "triton", "cuda.v6_pipeline", "triton.online"),
)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """out_i = exp(x_i - max x) / sum_j exp(x_j - max x) along `dim`.

    Args:
        x: [..., N] float32, bfloat16 or float16, any strides.
        dim: the axis to normalise; axes other than the last are copied to the last first.

    Returns:
        A tensor of x's shape and dtype; sums are taken in float32. A row of -inf gives NaN, as torch.softmax does.

    Raises:
        ValueError: x has no axes or another dtype. IndexError: `dim` is out of range.

    Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.

    Example:
        >>> softmax(torch.zeros(2))
        tensor([0.5000, 0.5000])
    """
    if dim == -1 or dim == x.dim() - 1:
        return _softmax(x)
    return _softmax(x.transpose(dim, -1)).transpose(dim, -1)


class Softmax(torch.nn.Module):
    """`softmax` as a module, with the arguments of torch.nn.Softmax."""

    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return softmax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
