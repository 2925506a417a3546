from numbers import Real

from torch import Tensor

from rooftile.core.bind import flag, tensors
from rooftile.core.kernel import Op, ranked
from rooftile.ops._shared import sum_pipeline
from rooftile.ops._shared.seeds import seeded
from rooftile.ops.dropout_add_norm import cuda_kernels, triton_kernels
from rooftile.ops.dropout_add_norm.spec import SPEC
from rooftile.ops.layernorm.api import add_layernorm
from rooftile.ops.rmsnorm.api import add_rmsnorm

_dropout_add_norm = Op(
    SPEC,
    *ranked((*triton_kernels.FORWARD, *cuda_kernels.FORWARD), "triton", "cuda.v2_rows"),
    backward=ranked((*triton_kernels.BACKWARD, sum_pipeline.DROPOUT_ADD_NORM, *cuda_kernels.BACKWARD), "cuda.v3_pipeline", "triton"),
)


def dropout_add_norm(x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, p: float = 0.5, eps: float = 1e-5,
                     norm: str = "layer", training: bool = True, *, seed: int | Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """sum = dropout(x, p) + residual, out = norm(sum, weight, bias), in one pass over the rows.

    Args:
        x, residual: [..., N] of one shape, any strides; no broadcasting. x is float32, bfloat16 or float16, residual the same or float32.
        weight, bias: [N] in x's dtype or float32; either may be absent.
        p: the probability of a zero. With p = 0, or not training, this is add_layernorm or add_rmsnorm.
        eps: added to the variance, or to the mean square.
        norm: "layer" or "rms".
        seed: as in `dropout`, whose mask this is: the same elements of x are dropped, and in the backward they are drawn again.

    Returns:
        (out, sum), out of x's dtype and sum of residual's, both differentiable. The sum is rounded once, and out is the norm of the
        rounded sum. dweight and dbias are added in float32 in one fixed order.

    Raises:
        ValueError: x and residual differ in shape or dtype, N differs between x and a parameter, p is outside [0, 1], or the norm is another;
            the message has both numbers.

    Source: Srivastava et al., Dropout, 2014; Ba, Kiros and Hinton, Layer Normalization, 2016; Zhang and Sennrich, Root Mean Square Layer
        Normalization, 2019.

    Example:
        >>> dropout_add_norm(torch.ones(1, 2), torch.tensor([[0.0, 2.0]]), p=0.0, eps=0.0)
        (tensor([[-1.,  1.]]), tensor([[1., 3.]]))
    """
    tensors("dropout_add_norm", x=x)
    flag("dropout_add_norm", "training", training)
    if isinstance(p, Real) and not 0 <= p <= 1:
        raise ValueError(f"dropout_add_norm: p is {p}, it lies between 0 and 1")
    if p == 0 or not training:
        if norm == "layer":
            return add_layernorm(x, residual, weight, bias, eps)
        if norm == "rms" and bias is None:
            return add_rmsnorm(x, residual, weight, eps)
        p, seed = 0.0, 0  # RMSNorm with a bias is this operator's alone; nothing is drawn
    return _dropout_add_norm(x, residual, weight, bias, seeded(seed, x), p, eps, norm)[:2]
