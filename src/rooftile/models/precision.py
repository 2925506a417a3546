"""The one place where weights meet the compute dtype."""

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rooftile.models.operators import Operators

__all__ = ["Precision", "Stream"]


class Stream(NamedTuple):
    """The residual stream on its way to a norm."""

    x: Tensor
    bias: Tensor | None = None  # in x already, where the layer that was last added leaves the bias's gradient to the norm
    branch: Tensor | None = None  # not in x yet: the norm adds it


class _Packed(torch.autograd.Function):
    """q, k and v side by side, on their way from the layer that made them to attention, and the bias of the layer behind it, on its way to the norm: together
    their gradients say that of the first layer's bias, of which only a third is a sum over rows.

        q    the sum of dq's rows
        k    zero: what is added to all keys adds one number to all of a row's scores, and changes no weight
        v    weights of a row add up to one, so what is added to all values is added to all rows that attention makes. The sum of their gradients
             is that of the next layer's bias, through its weight: a vector times a matrix. The vector is float32 here: rounded, it would add
             an error as large as that of the result's own rounding
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, after: Tensor, bias: Tensor, weight: Tensor, operators: Operators) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(weight)
        ctx.operators = operators
        return qkv.view_as(qkv), after.view_as(after)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dqkv: Tensor, dafter: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        q = ctx.operators.column_sum(dqkv.flatten(0, -2)[:, : len(dafter)])
        v = torch.mv(weight.float().t(), dafter)
        return dqkv, dafter, torch.cat((q, torch.zeros_like(q), v.to(q.dtype))), None, None


class _Repeated(torch.autograd.Function):
    """Rows [T, N], again for each of B sequences. `repeat` and `expand` copy two bytes at a time, `cat` sixteen; its own gradient is B slices' additions."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, count: int) -> Tensor:
        return torch.cat([rows] * count).view(count, *rows.shape)

    @staticmethod
    def backward(ctx: Any, drows: Tensor) -> tuple[Tensor, None]:
        return drows.sum(0), None


class Precision:
    """Binds a table of operators to a compute dtype (float32 or bfloat16); parameters are float32, or of that dtype.

    Tables with `autocast` run as most people run PyTorch: inside `torch.autocast`, the residual stream in float32.
    The others run without it: the residual stream is in the compute dtype. A float32 matrix is cast where it is used, a cast autograd sees,
    so that its gradient arrives in float32; one that is kept in the compute dtype is the same number without the cast, and so is its gradient.
    Norms take float32 weights as they are. A float32 stream cost 4 %
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

    def entry(self, tokens: Tensor, positions: Tensor) -> Stream:
        """The same of embeddings [B, T, D] of tokens and [T, D] of positions. The first norm adds the tokens to the positions: the addition is no pass of its
        own then, and neither is that of the stream's two gradients where it begins."""
        if self.operators.autocast:  # PyTorch's table adds what it broadcasts
            return Stream(positions.expand_as(tokens), branch=tokens)
        x, rows = self.stream(tokens), self.stream(positions)  # our operators take rows as they lie, and would copy what is expanded
        return Stream(_Repeated.apply(rows, len(x)) if len(x) else rows.expand_as(x), branch=x)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] weight [N, K] bias [N] -> [..., N]."""
        return self.operators.linear(x, self._low(weight), self._low(bias))

    def linear_add(self, x: Tensor, layer: nn.Linear, residual: Tensor) -> Tensor:
        """x [..., K] residual [..., N] -> [..., N] through a branch's last layer, added to the stream."""
        return self.operators.linear_add(x, self._low(layer.weight), residual, self._low(layer.bias))

    def attention(self, x: Tensor, first: nn.Linear, last: nn.Linear, heads: int, residual: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x [..., T, K] residual [..., T, N] -> [..., T, N] through the layer that makes q, k and v, causal attention and a branch's last layer, added to the
        stream; and that layer's bias, where its gradient is left to the norm behind. Without a residual the branch alone."""
        weight, left, low = self._low(last.weight), self._left(last, residual), first.bias
        plain = type(x) is Tensor and not torch.compiler.is_compiling()  # not what a graph is made of, which `_Packed` would launch on
        apart = plain and left is not None and first.bias.requires_grad and last.bias.requires_grad
        if apart:
            low = self._low(first.bias)
        qkv = self.linear(x, first.weight, low.detach() if apart else low)
        if apart:
            qkv, left = _Packed.apply(qkv, left.float(), low, weight.detach(), self.operators)
        y = self.operators.self_attention(qkv.view(*x.shape[:-1], 3, heads, -1), causal=True).flatten(-2)
        if residual is None:
            return self.operators.linear(y, weight, self._low(last.bias)), None
        return self.operators.linear_add(y, weight, residual, self._added(last, left)), left

    def mlp(self, x: Tensor, fc: nn.Linear, proj: nn.Linear, approximate: str, residual: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """x [..., K] residual [..., N] -> [..., N] through fc, gelu and proj, a branch's last layer, likewise."""
        left = self._left(proj, residual)
        parameters = (*map(self._low, (fc.weight, fc.bias, proj.weight)), self._added(proj, left))
        return self.operators.mlp(x, *parameters, approximate=approximate, residual=residual), left

    def gated_mlp(self, x: Tensor, gate_up: nn.Linear, down: nn.Linear, residual: Tensor) -> Tensor:
        """x [..., K] -> [..., N] through gate and up, one product, silu(gate) up and down, and the residual."""
        return self.operators.gated_mlp(x, self._low(gate_up.weight), self._low(down.weight), residual=residual)

    def layernorm(self, stream: Stream, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        """The stream [..., D] -> (its norm, itself as a tensor)."""
        x, bias, branch = stream
        if branch is not None:
            return self.operators.add_layernorm(branch, x, norm.weight, norm.bias, norm.eps)
        left = {} if bias is None else {"x_bias": bias}
        return self.operators.stream_layernorm(x, norm.weight, norm.bias, norm.eps, **left)

    def _left(self, layer: nn.Linear, residual: Tensor | None) -> Tensor | None:
        """The bias of a branch's last layer, where its gradient is left to the norm behind.

        A view: what hangs hooks on the tensors that a block gives, as FSDP does, must not hang them on the parameter."""
        return self._low(layer.bias).view_as(layer.bias) if self.operators.completes and residual is not None else None

    def _added(self, layer: nn.Linear, left: Tensor | None) -> Tensor:
        """The same bias, as the layer adds it."""
        low = self._low(layer.bias)
        return low if left is None else low.detach()

    def _low(self, parameter: Tensor | None) -> Tensor | None:
        """In the compute dtype, where nobody else sees to it."""
        return parameter if parameter is None or self.operators.autocast else parameter.to(self.dtype)
