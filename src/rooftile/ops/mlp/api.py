import torch
from torch import Tensor

import rooftile.ops.glu.api as glu
from rooftile.core.kernel import Op
from rooftile.ops._shared.layers import plain
from rooftile.ops.gelu.api import gelu
from rooftile.ops.mlp import composed_kernels as composed
from rooftile.ops.mlp import cublaslt_kernels as cublaslt
from rooftile.ops.mlp import cuda_kernels as cuda
from rooftile.ops.mlp import stream_kernels as stream
from rooftile.ops.mlp.spec import GATED_SPEC, SPEC

_mlp = Op(
    SPEC,
    *stream.FORWARD,
    backward=(*cuda.BACKWARD, *cublaslt.BACKWARD, *composed.BACKWARD),
)
_gated_mlp = Op(
    GATED_SPEC,
    *cuda.GATED_FORWARD,
    *composed.GATED_FORWARD,
    backward=(*cuda.GATED_BACKWARD, *composed.GATED_BACKWARD),
)


def mlp(
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    weight2: Tensor,
    bias2: Tensor | None,
    approximate: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """out = gelu(x weight1ᵀ + bias1) weight2ᵀ + bias2 + residual, the perceptron of two layers as one operator.

    Args:
        x: [..., K] float32, bfloat16 or float16, any strides.
        weight1, bias1: [F, K] and [F] of the same dtype or float32, which is rounded to x's dtype for the products; their gradients have their
            own dtype. A bias may be None.
        weight2, bias2: [N, F] and [N], likewise.
        approximate: gelu's form, "none" or "tanh". cuBLASLt has "tanh" in its products' epilogues, our own products on Hopper have both.
        residual: [..., N] of x's dtype, the stream that the branch is added to, as in `linear_add`; its gradient is out's.

    Returns:
        [..., N], dense, of x's dtype. What gelu is given, or on Hopper its slope there, and what it makes have x's dtype too and are kept for the
        backward pass.

    Raises:
        ValueError: shapes, dtypes or devices disagree, or another form; the message names both.

    Example:
        >>> mlp(torch.ones(1, 2), torch.ones(3, 2), None, torch.ones(1, 3), torch.tensor([1.0]))
        tensor([[6.8635]])
    """
    args = x, weight1, bias1, weight2, bias2, approximate
    wanted = torch.is_grad_enabled() and _mlp.plan.wants_grad((*args, "pre", residual))
    known = wanted and all(isinstance(t, Tensor) for t in (x, weight1, weight2))
    known = known and x.dim() > 0 and weight1.dim() == weight2.dim() == 2  # of what is none of these the door says what is wrong
    return _mlp(*args, cuda.keep(x, weight1, weight2) if known else "pre", residual)[0]


def gated_mlp(x: Tensor, weight1: Tensor, weight2: Tensor, activation: str = "silu", residual: Tensor | None = None) -> Tensor:
    """out = (act(gate) up) weight2ᵀ + residual with gate and up = x weight1ᵀ side by side: the gated perceptron, Llama's with silu, as one operator.

    Args:
        x: [..., K] float32, bfloat16 or float16, any strides.
        weight1: [2 F, K] of the same dtype or float32, which is rounded to x's dtype for the products; gate's rows, and behind them up's.
            Its gradient has its own dtype.
        weight2: [N, F], likewise.
        activation: "silu", "gelu", "gelu_tanh" or "relu".
        residual: [..., N] of x's dtype, the stream that the branch is added to, as in `linear_add`; its gradient is out's.

    Returns:
        [..., N], dense, of x's dtype. For the backward pass gate and up are kept, in x's dtype; act(gate) up is made again.

    Raises:
        ValueError: shapes, dtypes or devices disagree, weight1 has not twice as many rows as weight2 has columns, or another activation; the
            message names both.

    Source: Shazeer, GLU Variants Improve Transformer, 2020.

    Example:
        >>> gated_mlp(torch.ones(1, 2), torch.ones(6, 2), torch.ones(1, 3))
        tensor([[10.5696]])
    """
    return _gated_mlp(x, weight1, weight2, activation, residual)[0]


class MLP(torch.nn.Module):
    """`mlp` as a module: two torch.nn.Linear layers, fc1 and fc2, by initialisation and state dict, with gelu between them. A layer with hooks, with
    another in its place, as LoRA puts one, or with a weight of a class of its own, as a quantised one is, is called, and then so are the three one by one."""

    def __init__(self, in_features: int, hidden_features: int, out_features: int | None = None, bias: bool = True,
                 device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *, approximate: str = "none"):  # fmt: skip
        super().__init__()
        _mlp.takes(approximate=approximate)
        self.approximate = approximate
        self.fc1 = torch.nn.Linear(in_features, hidden_features, bias, device, dtype)
        self.fc2 = torch.nn.Linear(hidden_features, in_features if out_features is None else out_features, bias, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        if not (plain(self.fc1) and plain(self.fc2)):
            return self.fc2(gelu(self.fc1(x), self.approximate))
        return mlp(x, self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class GatedMLP(torch.nn.Module):
    """`gated_mlp` as a module: two torch.nn.Linear layers without biases, gate_up_proj and down_proj, by initialisation and state dict. Layers with hooks,
    or others in their place, are called, as in `MLP`."""

    def __init__(self, in_features: int, hidden_features: int, out_features: int | None = None,
                 device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *, activation: str = "silu"):  # fmt: skip
        super().__init__()
        _gated_mlp.takes(activation=activation)
        self.activation = activation
        self.gate_up_proj = torch.nn.Linear(in_features, 2 * hidden_features, False, device, dtype)
        self.down_proj = torch.nn.Linear(hidden_features, in_features if out_features is None else out_features, False, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        if not (plain(self.gate_up_proj) and plain(self.down_proj)):
            name, *form = composed.GATES[self.activation]
            return self.down_proj(getattr(glu, name)(self.gate_up_proj(x), None, *form))
        return gated_mlp(x, self.gate_up_proj.weight, self.down_proj.weight, self.activation)

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"
