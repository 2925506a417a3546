from torch import Tensor

from rooftile.core.kernel import Op, ranked
from rooftile.ops.bias_mask_scale_add import cuda_kernels, dense_kernels, triton_kernels
from rooftile.ops.bias_mask_scale_add.spec import SPEC

_bias_mask_scale_add = Op(
    SPEC,
    *dense_kernels.FORWARD,
    *triton_kernels.FORWARD,
    *cuda_kernels.FORWARD,
    backward=ranked((*triton_kernels.BACKWARD, *cuda_kernels.BACKWARD), "cuda.v3_pipeline", "cuda.v2_vector"),
)


def bias_mask_scale_add(x: Tensor, bias: Tensor, mask: Tensor, scale: float, residual: Tensor) -> Tensor:
    """out = (x + bias) scale + residual where mask is true, and residual where it is not: the end of a projection with its bias,
    a dropout mask or a padding mask, a factor, and the residual connection.

    Args:
        x, residual: [..., N] of one shape and dtype (float32, bfloat16, float16), any strides.
        bias: [N] in x's dtype or float32.
        mask: bool, of x's shape; an expanded row of [N] is read where it lies.
        scale: a number; 1 / (1 - p) for dropout.

    Returns:
        A contiguous tensor of x's shape and dtype, computed in float32 and rounded once. What is masked is not read as a number: a NaN
        there does not spread. dbias is added in float32 in one fixed order; the residual's gradient is the output's own, not a copy.

    Raises:
        ValueError: shapes differ, or a dtype is another; the message has both.

    Example:
        >>> bias_mask_scale_add(torch.tensor([1.0, 2.0]), torch.ones(2), torch.tensor([True, False]), 0.5, torch.zeros(2))
        tensor([1., 0.])
    """
    return _bias_mask_scale_add(x, bias, mask, scale, residual)
