import torch
from torch import Tensor

from rooftile.core.kernel import Op, ranked
from rooftile.ops.gelu import cuda_kernels, triton_kernels
from rooftile.ops.gelu.spec import SPEC

_gelu = Op(
    SPEC,
    *ranked((*triton_kernels.FORWARD, *cuda_kernels.FORWARD), "cuda.v4_flight"),
    backward=ranked((*triton_kernels.BACKWARD, *cuda_kernels.BACKWARD), "cuda.v4_flight"),
)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """out = x Phi(x), Phi the normal distribution function; with approximate="tanh"
    out = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), GPT-2's form.

    Args:
        x: any shape and strides; float32, bfloat16 or float16.
        approximate: "none" or "tanh".

    Returns:
        A contiguous tensor of x's shape and dtype; arithmetic is float32.

    Raises:
        ValueError: another dtype, or another form.

    Source: Hendrycks and Gimpel, Gaussian error linear units, 2016.

    Example:
        >>> gelu(torch.tensor([1.0]))
        tensor([0.8413])
    """
    return _gelu(x, approximate)


class GELU(torch.nn.Module):
    """`gelu` as a module, with the arguments of torch.nn.GELU."""

    def __init__(self, approximate: str = "none"):
        super().__init__()
        _gelu.takes(approximate=approximate)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"
