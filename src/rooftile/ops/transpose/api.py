from torch import Tensor

from rooftile.core.kernel import Op, ranked
from rooftile.ops.transpose import cuda_kernels, triton_kernels
from rooftile.ops.transpose.spec import SPEC

_transpose = Op(
    SPEC,
    *cuda_kernels.FORWARD[:1],
    *triton_kernels.FORWARD,
    *cuda_kernels.FORWARD[1:],
    backward=ranked((*triton_kernels.BACKWARD, *cuda_kernels.BACKWARD), "cuda.v5_vector"),
)


def transpose(x: Tensor) -> Tensor:
    """out[..., j, i] = x[..., i, j], written out: the result is contiguous, where x.mT is a view.

    Args:
        x: [..., N, K] float32, bfloat16, float16 or int32, any strides.

    Returns:
        A contiguous tensor [..., K, N] of x's dtype with x's bits.

    Raises:
        ValueError: x has fewer than two axes, or another dtype.

    Example:
        >>> transpose(torch.tensor([[1, 2, 3]], dtype=torch.int32))
        tensor([[1],
                [2],
                [3]], dtype=torch.int32)
    """
    return _transpose(x)
