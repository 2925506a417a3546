from torch import Tensor

from rooftile.core.kernel import Op, ranked
from rooftile.core.spec import OpSpec
from rooftile.ops.glu import cuda_kernels, triton_kernels
from rooftile.ops.glu.spec import GEGLU, GEGLU_AGAIN, REGLU, REGLU_AGAIN, SWIGLU, SWIGLU_AGAIN


def _wired(spec: OpSpec, spec_again: OpSpec, act: str, *first: str) -> tuple[Op, Op]:
    forward, backward, again = (a + b for a, b in zip(triton_kernels.kernels(act), cuda_kernels.kernels(act)))
    return Op(spec, *ranked(forward, *first), backward=backward), Op(spec_again, *again)


_swiglu, _swiglu_again = _wired(SWIGLU, SWIGLU_AGAIN, "silu")
_geglu, _geglu_again = _wired(GEGLU, GEGLU_AGAIN, "gelu", "cuda.v2_vector")
_reglu, _reglu_again = _wired(REGLU, REGLU_AGAIN, "relu")


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
        tensor([0., 6.])
    """
    return _reglu(gate, up)


def swiglu_again(dout: Tensor, gate: Tensor, up: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of swiglu(gate, up), and over dout swiglu(gate, up) itself: for a backward pass that did not keep the result and wants it
    once more, as a factor of a weight's gradient. One pass of six tensors where two are eight.

    Args:
        dout: [..., N], the result's gradient; rows of neighbours that no two elements share. Overwritten.
        gate, up: as in `swiglu`.

    Returns:
        dgate and dup; without up, [..., 2 N] and an empty tensor.

    Raises:
        ValueError: as `swiglu`.

    Example:
        >>> dout = torch.tensor([1.0])
        >>> swiglu_again(dout, torch.tensor([1.0]), torch.tensor([2.0]))
        (tensor([1.8553]), tensor([0.7311]))
        >>> dout
        tensor([1.4621])
    """
    return _swiglu_again(dout, gate, up)


def geglu_again(dout: Tensor, gate: Tensor, up: Tensor | None = None, approximate: str = "none") -> tuple[Tensor, Tensor]:
    """`swiglu_again` of geglu.

    Example:
        >>> dout = torch.tensor([1.0])
        >>> _ = geglu_again(dout, torch.tensor([1.0]), torch.tensor([2.0]))
        >>> dout
        tensor([1.6827])
    """
    return _geglu_again(dout, gate, up, approximate)


def reglu_again(dout: Tensor, gate: Tensor, up: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`swiglu_again` of reglu.

    Example:
        >>> dout = torch.tensor([1.0])
        >>> _ = reglu_again(dout, torch.tensor([3.0]), torch.tensor([2.0]))
        >>> dout
        tensor([6.])
    """
    return _reglu_again(dout, gate, up)
