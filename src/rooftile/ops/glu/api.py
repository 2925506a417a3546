from torch import Tensor

from rooftile.core.kernel import Op, ranked
from rooftile.core.spec import OpSpec
from rooftile.ops.glu import cuda_kernels, triton_kernels
from rooftile.ops.glu.spec import GEGLU, REGLU, SWIGLU


def _wired(spec: OpSpec, act: str, *first: str) -> Op:
    (forward, backward), (cuda_forward, cuda_backward) = triton_kernels.kernels(act), cuda_kernels.kernels(act)
    return Op(spec, *ranked((*forward, *cuda_forward), *first), backward=(*backward, *cuda_backward))


_swiglu, _geglu, _reglu = _wired(SWIGLU, "silu"), _wired(GEGLU, "gelu", "cuda.v2_vector"), _wired(REGLU, "relu")


def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """out = silu(gate) * up, with silu(x) = x / (1 + exp(-x)).

    Args:
        gate, up: [..., N] of one shape and dtype (float32, bfloat16, float16). Rows may lie apart, as those of two halves of one tensor
            do: they are read where they are.
        Without up, gate is [..., 2 N]: the gate and, beside it, up, as one projection makes both. Its gradient is one tensor of that
            shape, which no copy has to join: prefer this over two halves where a gradient is wanted.

    Returns:
        A contiguous [..., N]; arithmetic is float32, rounded once. The backward keeps nothing but the inputs.

    Raises:
        ValueError: shapes or dtypes differ, or a gate without up has an odd N; the message has the numbers.

    Source: Shazeer, GLU Variants Improve Transformer, 2020.

    Example:
        >>> swiglu(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0]))
        tensor([ 0.7311, 17.6159])
    """
    return _swiglu(gate, up)


def geglu(gate: Tensor, up: Tensor | None = None, approximate: str = "none") -> Tensor:
    """out = gelu(gate) * up. `approximate` is "none" or "tanh", as in `gelu`; for all else see `swiglu`.

    Example:
        >>> geglu(torch.tensor([1.0]), torch.tensor([2.0]))
        tensor([1.6827])
    """
    return _geglu(gate, up, approximate)


def reglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """out = max(gate, 0) * up; for all else see `swiglu`.

    Example:
        >>> reglu(torch.tensor([-1.0, 2.0]), torch.tensor([3.0, 3.0]))
        tensor([-0., 6.])
    """
    return _reglu(gate, up)
