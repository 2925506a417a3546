from torch import Tensor

from rooftile.core.kernel import Op
from rooftile.ops.reduce_sum import cuda_kernels, triton_kernels
from rooftile.ops.reduce_sum.spec import SPEC

_reduce_sum = Op(
    SPEC,
    *cuda_kernels.FORWARD[:1],
    *triton_kernels.FORWARD,
    *cuda_kernels.FORWARD[1:],
    backward=(*triton_kernels.BACKWARD, *cuda_kernels.BACKWARD),
)


def reduce_sum(x: Tensor) -> Tensor:
    """out = the sum of all elements of x.

    Args:
        x: any shape and strides; float32, bfloat16, float16 or float64.

    Returns:
        A tensor without axes in x's dtype. The sum is taken in float32 (of float64 in float64), in one fixed order, and rounded once: two runs on one device
        give the same bits. The sum of nothing is 0.

    Raises:
        ValueError: another dtype; the message has both.

    Example:
        >>> reduce_sum(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor(10.)
    """
    return _reduce_sum(x)
