import torch
from torch import Tensor

from rooftile.core.bind import has_rows, parameter, tensors
from rooftile.core.kernel import Op, ranked
from rooftile.ops.softmax import cuda_forms, cuda_kernels, least_kernels, log_kernels, masked_kernels, triton_kernels
from rooftile.ops.softmax.spec import LOG, MASK, SPEC

_softmax = Op(
    SPEC,
    *least_kernels.FORWARD,
    *ranked((*triton_kernels.FORWARD, *cuda_kernels.FORWARD), "cuda.v9_ahead", "cuda.v8_exchange", "cuda.v5_online"),
    backward=ranked((*triton_kernels.BACKWARD, *cuda_kernels.BACKWARD), "cuda.v8_exchange", "triton", "cuda.v6_pipeline", "triton.online"),
)


_log_softmax = Op(
    LOG,
    *ranked((*log_kernels.FORWARD, *cuda_forms.LOG_FORWARD), "cuda.v9_ahead", "cuda.v8_exchange", "cuda.v5_online"),
    backward=ranked((*log_kernels.BACKWARD, *cuda_forms.LOG_BACKWARD), "cuda.v8_exchange", "triton", "cuda.v6_pipeline", "triton.online"),
)
_masked_softmax = Op(
    MASK,
    *ranked((*masked_kernels.FORWARD, *cuda_forms.MASKED_FORWARD), "cuda.v10_once", "cuda.v5_online"),
    backward=ranked((*masked_kernels.BACKWARD, *cuda_forms.MASKED_BACKWARD), "cuda.v6_pipeline", "triton", "triton.online"),
)


def softmax(x: Tensor, dim: int = -1, *, scale: float = 1.0, causal: bool = False, mask: Tensor | None = None) -> Tensor:
    """out_i = exp(x_i - max x) / sum_j exp(x_j - max x) along `dim`; of scores, exp(scale x_i) over what a row may look at.

    Args:
        x: [..., N] float32, bfloat16 or float16, any strides.
        dim: the axis to normalise; axes other than the last are copied to the last first.
        scale: of x, before the exponential.
        causal: x is [..., T, N]; row t looks at column n where n <= t + N - T: rows are aligned to the last column.
        mask: bool, of a shape that broadcasts to x's: True where a row may look.

    Returns:
        A tensor of x's shape and dtype, along another axis than the last a view; sums are taken in float32. A row of -inf gives NaN, as
        torch.softmax does; with a scale, a mask or causal, a row with nothing to look at gives zeros, and no gradient.

    Raises:
        ValueError: x has no axes or another dtype; with a scale, a mask or causal, another dim than the last; causal rows of one axis; a mask
        that does not fit.
        IndexError: `dim` is out of range.

    Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.

    Example:
        >>> softmax(torch.zeros(2))
        tensor([0.5000, 0.5000])
        >>> softmax(torch.zeros(2, 2), causal=True)
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]])
    """
    if scale != 1.0 or causal or mask is not None:
        return _scores(x, dim, scale, causal, mask)
    return _softmax(x) if dim == -1 else _along(_softmax, x, dim)  # most calls: host time is a feature


def _along(op: Op, x: Tensor, dim: int) -> Tensor:
    _axis(op.spec.name, dim)
    if not isinstance(x, Tensor) or dim == x.dim() - 1:
        return op(x)
    return op(x.transpose(dim, -1)).transpose(dim, -1)


def _axis(name: str, dim: int) -> None:
    if type(dim) is not int:
        parameter(name, "dim", dim, int)


def _scores(x: Tensor, dim: int, scale: float, causal: bool, mask: Tensor | None) -> Tensor:
    """x as [B, H, T, N]: axes that are missing are 1, those before the last three are one."""
    tensors("softmax", {"mask": mask}, x=x)
    has_rows("softmax", "x", x)
    _axis("softmax", dim)
    if dim not in (-1, x.dim() - 1):
        raise ValueError(f"softmax: dim is {dim}, but scores of a scale or a mask are normalised along the last of {x.dim()} axes")
    if causal and x.dim() < 2:
        raise ValueError(f"softmax: causal rows are the last but one axis, x has {x.dim()} {list(x.shape)}")
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError(f"softmax: mask is {str(mask.dtype).removeprefix('torch.')}, takes bool: True where a row may look")
        try:
            mask = _four(mask.expand(x.shape))
        except RuntimeError:
            raise ValueError(f"softmax: mask is {list(mask.shape)}, which does not broadcast to x's {list(x.shape)}") from None
    return _masked_softmax(_four(x), mask, scale, causal).view(x.shape)


def _four(x: Tensor) -> Tensor:
    if x.dim() > 4:
        return x.flatten(0, -4)
    return x[(None,) * (4 - x.dim())] if x.dim() < 4 else x


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """out_i = x_i - max x - log sum_j exp(x_j - max x) along `dim`.

    Args:
        x: [..., N] float32, bfloat16 or float16, any strides.
        dim: the axis to normalise; axes other than the last are copied to the last first.

    Returns:
        A tensor of x's shape and dtype, along another axis than the last a view; sums are taken in float32. A row of -inf gives NaN, as
        torch.log_softmax does.

    Raises:
        ValueError: x has no axes or another dtype. IndexError: `dim` is out of range.

    Example:
        >>> log_softmax(torch.zeros(2))
        tensor([-0.6931, -0.6931])
    """
    return _log_softmax(x) if dim == -1 else _along(_log_softmax, x, dim)


class Softmax(torch.nn.Module):
    """`softmax` as a module, with the arguments of torch.nn.Softmax; without a dim it takes the last, where PyTorch's depends on the axes."""

    _name = "softmax"

    def __init__(self, dim: int = -1):
        super().__init__()
        _axis(self._name, dim)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return softmax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """`log_softmax` as a module, with the arguments of torch.nn.LogSoftmax; without a dim it takes the last."""

    _name = "log_softmax"

    def forward(self, x: Tensor) -> Tensor:
        return log_softmax(x, self.dim)
