from torch import Tensor

from rooftile.core.kernel import Op, ranked
from rooftile.ops.array_increment import cuda_kernels, triton_kernels
from rooftile.ops.array_increment.spec import SPEC

_array_increment = Op(
    SPEC,
    *cuda_kernels.FORWARD[:1],
    *triton_kernels.FORWARD,
    *cuda_kernels.FORWARD[1:],
    backward=ranked((*triton_kernels.BACKWARD, *cuda_kernels.BACKWARD), "cuda.v2_vector"),
)


def array_increment(x: Tensor, value: float = 1.0) -> Tensor:
    """out = x + value, elementwise; x stays as it is.

    Args:
        x: any shape and strides; float32, bfloat16, float16 or int32.
        value: a number; a whole one where x is int32.

    Returns:
        A contiguous tensor of x's shape and dtype. The sum is rounded once.

    Raises:
        ValueError: another dtype, or a value with a fraction for int32.

    Example:
        >>> array_increment(torch.zeros(3))
        tensor([1., 1., 1.])
    """
    return _array_increment(x, value)
