from torch import Tensor

from rooftile.core.kernel import Op, ranked
from rooftile.ops.scan import cuda_kernels, triton_kernels
from rooftile.ops.scan.spec import SPEC

_scan = Op(
    SPEC,
    *ranked((*triton_kernels.FORWARD, *cuda_kernels.FORWARD), "cuda.v5_pipeline", "cuda.v4_look_back"),
    backward=ranked((*triton_kernels.BACKWARD, *cuda_kernels.BACKWARD), "cuda.v5_pipeline", "cuda.v4_look_back"),
)


def scan(x: Tensor, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """out_i = sum of x_j over j <= i along the last axis: the cumulative sum.

    Args:
        x: [..., N] float32, bfloat16, float16 or int32, any strides; one long row or many.
        exclusive: over j < i instead, so that the first is 0.
        reverse: from the end: over j >= i, or j > i.

    Returns:
        A tensor of x's shape and dtype. Floating sums are taken in float32, in one fixed order, and each is rounded once; integer sums
        are exact and wrap beyond 32 bits. The gradient is the scan of dout in the other direction.

    Raises:
        ValueError: x has no axes or another dtype; a word that is no bool.

    Source: Blelloch, Prefix Sums and Their Applications, 1990.

    Example:
        >>> scan(torch.tensor([1.0, 2.0, 3.0]), exclusive=True)
        tensor([0., 1., 3.])
    """
    return _scan(x, exclusive, reverse)
