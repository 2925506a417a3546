import torch
from torch import Tensor

from rooftile.core.bind import flag, parameter, tensors
from rooftile.core.kernel import Op
from rooftile.ops._shared.seeds import seeded
from rooftile.ops.dropout import cuda_kernels, triton_kernels
from rooftile.ops.dropout.spec import SPEC

_dropout = Op(SPEC, *triton_kernels.FORWARD, *cuda_kernels.FORWARD, backward=(*triton_kernels.BACKWARD, *cuda_kernels.BACKWARD))


def dropout(x: Tensor, p: float = 0.5, training: bool = True, *, seed: int | Tensor | None = None) -> Tensor:
    """out_i = x_i / (1 - p) with probability 1 - p, else 0; x itself if p is 0 or not training.

    The mask is a function of (seed, i), i counting row-major whatever the strides: element i takes word i % 4 of Philox4x32-7 at the
    counter i // 4 under the seed's 64 bits, and is kept iff that word is at least p 2^32, rounded down. It is never stored, and the same on every device.

    Args:
        x: any shape; float32, bfloat16 or float16.
        p: the probability of a zero.
        training: whether to drop at all.
        seed: an integer, or a tensor of one int64 on x's device. Without one it is drawn from PyTorch's default generator on x's
            device, without waiting: torch.manual_seed makes it repeatable, and a CUDA graph draws a fresh one at each replay.

    Returns:
        A contiguous tensor of x's shape and dtype.

    Raises:
        ValueError: p is outside [0, 1], or the dtype is another.

    Source: Srivastava et al., Dropout, 2014; Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011.

    Example:
        >>> dropout(torch.ones(4), 0.5, seed=7)
        tensor([0., 0., 0., 2.])
    """
    flag("dropout", "training", training)
    parameter("dropout", "p", p, float)
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p is {p}, it lies between 0 and 1")
    if not training or p == 0:
        return x
    tensors("dropout", x=x)
    return _dropout(x, seeded(seed, x), p)


class Dropout(torch.nn.Module):
    """`dropout` as a module, with the arguments of torch.nn.Dropout."""

    def __init__(self, p: float = 0.5, inplace: bool = False):
        super().__init__()
        _dropout.takes(p=p)
        if inplace:
            raise ValueError("Dropout: inplace=True is not supported: the output has memory of its own")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
