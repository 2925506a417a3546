import torch
from torch import Tensor

from rooftile.core.kernel import Op
from rooftile.ops.gemm import cublas_kernels as cublas
from rooftile.ops.gemm import cublaslt_kernels as cublaslt
from rooftile.ops.gemm import cuda_kernels as cuda
from rooftile.ops.gemm import sums_kernels as sums
from rooftile.ops.gemm import triton_kernels as triton
from rooftile.ops.gemm.spec import LINEAR, SPEC

__all__ = ["Linear", "gemm", "linear"]

_gemm = Op(
    SPEC,
    cublaslt.GEMM,
    cublas.GEMM,
    *triton.GEMM,
    cuda.GEMM,
    backward=(cublaslt.GEMM_BACKWARD, cublas.GEMM_BACKWARD, triton.GEMM_BACKWARD, cuda.GEMM_BACKWARD),
)
_linear = Op(
    LINEAR,
    cublaslt.LINEAR,
    cublas.LINEAR,
    *triton.LINEAR,
    cuda.LINEAR,
    backward=(sums.LINEAR_BACKWARD, cublaslt.LINEAR_BACKWARD, cublas.LINEAR_BACKWARD, triton.LINEAR_BACKWARD, cuda.LINEAR_BACKWARD),
)


def gemm(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """out_mn = sum_k a_mk b_kn + bias_n.

    Args:
        a: [..., K] float32, bfloat16 or float16, any strides.
        b: [K, N] of the same dtype, any strides: a transposed view is read as it lies.
        bias: [N] of the same dtype.

    Returns:
        [..., N], dense, of the same dtype; sums are taken in float32 and rounded once.

    Raises:
        ValueError: shapes, dtypes or devices disagree; the message names both.

    Source: the grouped program order is that of Tillet, Kung and Cox, Triton, 2019.

    Example:
        >>> gemm(torch.ones(1, 3), torch.ones(3, 2))
        tensor([[3., 3.]])
    """
    return _gemm(a, b, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`gemm` with its second factor stored as a layer stores it: out = x weightᵀ + bias.

    Args:
        x: [..., K] float32, bfloat16 or float16, any strides.
        weight: [N, K] of the same dtype; its gradient comes out dense in this layout.
        bias: [N] of the same dtype.

    Returns:
        [..., N], dense, of the same dtype; sums are taken in float32 and rounded once.

    Raises:
        ValueError: shapes, dtypes or devices disagree; the message names both.

    Example:
        >>> linear(torch.ones(1, 3), torch.ones(2, 3))
        tensor([[3., 3.]])
    """
    return _linear(x, weight, bias)


class Linear(torch.nn.Linear):
    """`linear` as a module: arguments, initialisation and state dict are those of torch.nn.Linear."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
