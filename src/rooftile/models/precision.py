"""The one place where weights meet the compute dtype."""

import contextlib

import torch
from torch import Tensor, nn

from rooftile.models.operators import Operators

__all__ = ["Branch", "Precision"]

Branch = tuple[Tensor, Tensor | None]  # what is to be added to the stream, and zeros whose gradient is that of the bias in it


class Precision:
    """Binds a table of operators to a compute dtype (float32 or bfloat16); parameters are float32, or of that dtype.

    Tables with `autocast` run as most people run PyTorch: inside `torch.autocast`, the residual stream in float32.
    The others run without it: the residual stream is in the compute dtype. A float32 matrix is cast where it is used, a cast autograd sees,
    so that its gradient arrives in float32; one that is kept in the compute dtype is the same number without the cast, and so is its gradient.
    Norms take float32 weights as they are. A float32 stream (add_layernorm takes one) cost 4 %
    of the step on the H200 and brought the loss no nearer to PyTorch's.
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
        return x if self.operators.autocast else x.to(self.dtype)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] weight [N, K] bias [N] -> [..., N]."""
        if not self.operators.autocast:
            weight, bias = weight.to(self.dtype), None if bias is None else bias.to(self.dtype)
        return self.operators.linear(x, weight, bias)

    def linear_add(self, x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        """x [..., K] weight [N, K] residual [..., N] -> [..., N]."""
        return self.operators.linear_add(x, weight if self.operators.autocast else weight.to(self.dtype), residual)

    def last(self, x: Tensor, layer: nn.Linear, dropped: bool) -> Branch:
        """x [..., K] -> [..., N] through a branch's last layer, whose bias has its gradient there where the branch is to be `dropped` from."""
        here, later = self._bias(layer, dropped)
        return self.linear(x, layer.weight, here), later

    def mlp(self, x: Tensor, fc: nn.Linear, proj: nn.Linear, approximate: str, dropped: bool) -> Branch:
        """x [..., K] -> [..., N] through fc, gelu and proj, which is a branch's last layer."""
        here, later = self._bias(proj, dropped)
        parameters = (fc.weight, fc.bias, proj.weight, here)
        if not self.operators.autocast:
            parameters = tuple(None if p is None else p.to(self.dtype) for p in parameters)
        return self.operators.mlp(x, *parameters, approximate=approximate), later

    def _bias(self, layer: nn.Linear, dropped: bool) -> tuple[Tensor | None, Tensor | None]:
        """For the layer; and for the sum zeros, added to no effect, whose gradient is the bias's.

        The layer must add the bias, to a sum in float32: sums of two numbers of 16 bits, branch and stream, are often ties, and a bias added there,
        however small, would break all of a column to its side, as if it were half of a last bit."""
        if not (self.operators.completes and torch.is_grad_enabled() and layer.bias.requires_grad) or dropped:
            return layer.bias, None
        low = layer.bias.to(self.dtype)
        return low.detach(), low - low.detach()

    def gated_mlp(self, x: Tensor, gate_up: nn.Linear, down: nn.Linear, residual: Tensor) -> Tensor:
        """x [..., K] -> [..., N] through gate and up, one product, silu(gate) up and down, and the residual."""
        parameters = (gate_up.weight, down.weight)
        if not self.operators.autocast:
            parameters = tuple(p.to(self.dtype) for p in parameters)
        return self.operators.gated_mlp(x, *parameters, residual=residual)

    def layernorm(self, x: Tensor, module: nn.LayerNorm) -> Tensor:
        """x [..., D] -> [..., D]."""
        return self.operators.layernorm(x, module.weight, module.bias, module.eps)

    def add_layernorm(self, branch: Branch | None, residual: Tensor, module: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        """branch, residual [..., D] -> (the norm of their sum, their sum); without a branch the sum is the residual itself."""
        if branch is None:
            return self.layernorm(residual, module), residual
        x, x_bias = branch
        lacking = {} if x_bias is None else {"x_bias": x_bias}
        return self.operators.add_layernorm(x, residual, module.weight, module.bias, module.eps, **lacking)
