from torch import Tensor

from rooftile.core.kernel import Op
from rooftile.ops.linear_add.spec import SPEC
from rooftile.ops.linear_add.vendor_kernels import BACKWARD, FORWARD

_linear_add = Op(SPEC, *FORWARD, backward=BACKWARD)


def linear_add(x: Tensor, weight: Tensor, residual: Tensor, bias: Tensor | None = None) -> Tensor:
    """out = x weightᵀ + bias + residual: the last layer of a branch, and the stream that it is added to, as one product.

    Args:
        x: [..., K] float32, bfloat16 or float16, any strides.
        weight: [N, K] of the same dtype or float32, which is rounded to x's dtype for the product; its gradient has its own dtype.
        residual: [..., N] of x's dtype; no broadcasting. Its gradient is out's.
        bias: [N], likewise as the weight; may be absent.

    Returns:
        [..., N], dense, of x's dtype; the sum is taken in float32 and rounded once, where a layer and an addition round twice.

    Raises:
        ValueError: shapes, dtypes or devices disagree; the message names both.

    Source: the residual connection is He et al., Deep Residual Learning, 2015.

    Example:
        >>> linear_add(torch.ones(1, 3), torch.ones(2, 3), torch.tensor([[0.5, 1.0]]))
        tensor([[3.5000, 4.0000]])
    """
    return _linear_add(x, weight, residual, bias)
