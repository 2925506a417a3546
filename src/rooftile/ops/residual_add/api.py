import torch
from torch import Tensor

from rooftile.core.bind import flag, tensors
from rooftile.core.kernel import Op
from rooftile.ops.residual_add import cuda_kernels, triton_kernels
from rooftile.ops.residual_add.spec import OVERWRITE, SPEC

_residual_add = Op(SPEC, *triton_kernels.FORWARD, *cuda_kernels.FORWARD, backward=triton_kernels.BACKWARD)
_overwrite = Op(OVERWRITE, *triton_kernels.OVERWRITE, *cuda_kernels.OVERWRITE)


def residual_add(x: Tensor, residual: Tensor, *, inplace: bool = False) -> Tensor:
    """out = x + residual, in the residual's dtype.

    Args:
        x: any shape and strides; float32, bfloat16 or float16.
        residual: of x's shape, in its dtype or float32: a stream that many branches are added to loses less in float32.
        inplace: the sum takes the residual's place, for inference: it keeps no graph, so neither may ask for a gradient.

    Returns:
        A contiguous tensor, added in float32 and rounded once; in place the residual itself. The gradient of both is the output's own,
        and no kernel runs for it.

    Raises:
        ValueError: shapes or devices differ, or a dtype is another; inplace that is no bool, with a gradient asked for, or where several elements of
            the residual lie in one place.

    Source: He et al., Deep Residual Learning, 2015.

    Example:
        >>> residual_add(torch.tensor([1.0]), torch.tensor([2.0]))
        tensor([3.])
    """
    if not inplace:
        return _residual_add(x, residual)
    flag("residual_add", "inplace", inplace)
    tensors("residual_add", x=x, residual=residual)
    for name, t in (("x", x), ("residual", residual)):
        if t.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"residual_add: inplace=True keeps no graph, but {name} requires a gradient: leave it out, or use torch.no_grad()"
            )
    _overwrite(x, residual)
    return residual
