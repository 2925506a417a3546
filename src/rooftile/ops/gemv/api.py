from torch import Tensor

from rooftile.core.kernel import Op
from rooftile.ops.gemv import cuda_kernels, kept_kernels, triton_kernels
from rooftile.ops.gemv.spec import SPEC

_gemv = Op(
    SPEC,
    *kept_kernels.FORWARD,
    *cuda_kernels.FORWARD[:1],
    *triton_kernels.FORWARD,
    *cuda_kernels.FORWARD[1:],
    backward=(*cuda_kernels.BACKWARD, *triton_kernels.BACKWARD),
)


def gemv(a: Tensor, x: Tensor) -> Tensor:
    """out_i = sum_k a_ik x_k: a matrix times a vector. `gemv(a.t(), x)` is a vector times a matrix, and copies nothing.

    Args:
        a: [M, K] float32, bfloat16 or float16; rows or columns dense is fastest, other strides are copied.
        x: [K] in a's dtype.

    Returns:
        [M] in a's dtype. Sums are float32, in one fixed order, and rounded once: two runs on one device give the same bits.

    Raises:
        ValueError: K or the dtype differs between a and x, or a dtype is another; the message has both.

    Example:
        >>> gemv(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1.0, 10.0]))
        tensor([21., 43.])
    """
    return _gemv(a, x)
