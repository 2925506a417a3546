import torch
from torch import Tensor

from rooftile.ops._shared.activation_reference import activate, slope
from rooftile.ops._shared.reference import wide

GELU = {"none": "gelu", "tanh": "gelu_tanh"}


def swiglu(gate: Tensor, up: Tensor | None) -> Tensor:
    return _gated(gate, up, "silu")


def swiglu_backward(dout: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    return _gated_backward(dout, gate, up, "silu")


def geglu(gate: Tensor, up: Tensor | None, approximate: str) -> Tensor:
    return _gated(gate, up, GELU[approximate])


def geglu_backward(dout: Tensor, gate: Tensor, up: Tensor | None, approximate: str) -> tuple[Tensor, Tensor]:
    return _gated_backward(dout, gate, up, GELU[approximate])


def reglu(gate: Tensor, up: Tensor | None) -> Tensor:
    return _gated(gate, up, "relu")


def reglu_backward(dout: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    return _gated_backward(dout, gate, up, "relu")


def swiglu_again(dout: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    return _gated_again(dout, gate, up, "silu")


def geglu_again(dout: Tensor, gate: Tensor, up: Tensor | None, approximate: str) -> tuple[Tensor, Tensor]:
    return _gated_again(dout, gate, up, GELU[approximate])


def reglu_again(dout: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    return _gated_again(dout, gate, up, "relu")


def _halves(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """Without `up`, gate is both side by side."""
    if up is not None:
        return gate, up
    k = gate.shape[-1] // 2
    return gate[..., :k], gate[..., k:]


def _gated(gate: Tensor, up: Tensor | None, name: str) -> Tensor:
    g, u = _halves(gate, up)
    return (activate(wide(g), name) * wide(u)).to(gate.dtype)


def _gated_backward(dout: Tensor, gate: Tensor, up: Tensor | None, name: str) -> tuple[Tensor, Tensor]:
    g, u = _halves(gate, up)
    d = wide(dout)
    dgate, dup = (d * wide(u) * slope(wide(g), name)).to(gate.dtype), (d * activate(wide(g), name)).to(gate.dtype)
    return (dgate, dup) if up is not None else (torch.cat([dgate, dup], -1), gate.new_empty(0))


def _gated_again(dout: Tensor, gate: Tensor, up: Tensor | None, name: str) -> tuple[Tensor, Tensor]:
    made = _gated_backward(dout, gate, up, name)
    dout.copy_(_gated(gate, up, name))
    return made
