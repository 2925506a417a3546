"""The one place where weights meet the compute dtype."""

import contextlib
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rooftile.models.operators import Operators
from rooftile.ops._shared.layers import bare

__all__ = ["Precision", "Stream", "held"]


def held(layer: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """A layer whose parameters are read. What computes something else in its place, as a LoRA's or a quantised one does, would never be asked."""
    if type(layer).forward is not kind.forward or "forward" in vars(layer):
        what = f"{type(layer).__module__}.{type(layer).__name__} stands in the place of a torch.nn.{kind.__name__}, and the layers of this model only hold parameters"
        raise ValueError(f"{what}: what it computes would be left out. `rooftile.patch` of transformers' own model takes it")
    return layer


class Stream(NamedTuple):
    """The residual stream on its way to a norm."""

    x: Tensor
    bias: Tensor | None = None  # in x already, where the layer that was last added leaves the bias's gradient to the norm
    branch: Tensor | None = None  # not in x yet: one that was dropped from, which the norm adds


class Precision:
    """Binds a table of operators to a compute dtype (float32 or bfloat16); parameters are float32, or of that dtype.

    Tables with `autocast` run as most people run PyTorch: inside `torch.autocast`, the residual stream in float32.
    The others run without it: the residual stream is in the compute dtype. A float32 matrix is cast where it is used, a cast autograd sees,
    so that its gradient arrives in float32; one that is kept in the compute dtype is the same number without the cast, and so is its gradient.
    Norms take float32 weights as they are. A float32 stream cost time and brought the loss no nearer to PyTorch's.
    """

    def __init__(self, operators: Operators, compute_dtype: torch.dtype = torch.float32):
        if compute_dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"compute_dtype is {compute_dtype}, must be torch.float32 or torch.bfloat16")
        self.operators, self.dtype = operators, compute_dtype

    def region(self, device_type: str) -> contextlib.AbstractContextManager:
        """What the whole forward pass runs inside."""
        if self.operators.autocast and self.dtype != torch.float32:
            return torch.autocast(device_type, self.dtype)
        return contextlib.nullcontext()

    def stream(self, x: Tensor) -> Tensor:
        """The residual stream, at its entry."""
        if not self.operators.autocast and x.dtype not in (torch.float32, self.dtype):
            what = f"its parameters are {x.dtype}, and it computes in {self.dtype}"
            raise ValueError(
                f"{what}: the model is made with compute_dtype=torch.bfloat16 for parameters of that dtype, others are float32"
            )
        return x if self.operators.autocast else x.to(self.dtype)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] weight [N, K] bias [N] -> [..., N]."""
        return self.operators.linear(x, self._low(weight), self._low(bias))

    def through(self, x: Tensor, layer: nn.Linear) -> Tensor:
        """x [..., K] -> [..., N] through a layer."""
        held(layer, nn.Linear)
        return self.linear(x, layer.weight, layer.bias)

    def linear_add(self, x: Tensor, layer: nn.Linear, residual: Tensor | None, leaves: bool = False) -> Tensor:
        """x [..., K] residual [..., N] -> [..., N] through a branch's last layer, added to the stream; without a residual the branch alone. A branch that
        `leaves` its bias's gradient to the norm behind says so."""
        if residual is None:
            return self.through(x, layer)
        held(layer, nn.Linear)
        return self.operators.linear_add(x, self._low(layer.weight), residual, self._added(layer, leaves))

    def mlp(self, x: Tensor, fc: nn.Linear, proj: nn.Linear, approximate: str, residual: Tensor | None, leaves: bool) -> Tensor:
        """x [..., K] residual [..., N] -> [..., N] through fc, gelu and proj, a branch's last layer, likewise."""
        held(fc, nn.Linear), held(proj, nn.Linear)
        parameters = (*map(self._low, (fc.weight, fc.bias, proj.weight)), self._added(proj, leaves and residual is not None))
        return self.operators.mlp(x, *parameters, approximate=approximate, residual=residual)

    def leaves(self, branch: nn.Module) -> bool:
        """Whether a branch leaves its last bias's gradient to the norm behind: of what a hook makes of the sum, the norm would know nothing."""
        return self.operators.completes and bare(branch, type(branch))

    def left(self, branch: nn.Module, layer: nn.Linear) -> Tensor | None:
        """The bias of a branch's last layer, added to the stream, where its gradient is left to the norm behind.

        A view: what hangs hooks on the tensors that a block gives, as FSDP does, must not hang them on the parameter."""
        low = self._low(layer.bias)
        return low.view_as(low) if low is not None and self.leaves(branch) else None

    def gated_mlp(self, x: Tensor, gate_up: nn.Linear, down: nn.Linear, residual: Tensor) -> Tensor:
        """x [..., K] -> [..., N] through gate and up, one product, silu(gate) up and down, and the residual."""
        held(gate_up, nn.Linear), held(down, nn.Linear)
        return self.operators.gated_mlp(x, self._low(gate_up.weight), self._low(down.weight), residual=residual)

    def layernorm(self, stream: Stream, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        """The stream [..., D] -> (its norm, itself as a tensor)."""
        x, bias, branch = stream
        held(norm, nn.LayerNorm)
        if branch is not None:
            return self.operators.add_layernorm(branch, x, norm.weight, norm.bias, norm.eps)
        left = {} if bias is None else {"x_bias": bias}
        return self.operators.stream_layernorm(x, norm.weight, norm.bias, norm.eps, **left)

    def _added(self, layer: nn.Linear, leaves: bool) -> Tensor | None:
        """The same bias, as the layer adds it."""
        low = self._low(layer.bias)
        return low.detach() if leaves and low is not None else low

    def _low(self, parameter: Tensor | None) -> Tensor | None:
        """In the compute dtype, where nobody else sees to it."""
        return parameter if parameter is None or self.operators.autocast else parameter.to(self.dtype)
