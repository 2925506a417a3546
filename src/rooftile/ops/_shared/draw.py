"""What the specs of the norms share: how a case's inputs are drawn."""

import torch


def parameters(call, case, gen):
    """`affine` is the case's word, not the operator's: float32 parameters beside a narrower x, or none at all."""
    kind = case.params.get("affine")
    for name in {"weight", "bias"} & set(call):
        if kind == "float32":
            call[name] = call[name].float()
        elif kind == "none" or (kind == "weight" and name == "bias"):
            call[name] = None
    return call


def exact_sums(call, case, gen):
    """x and residual on one grid a row, so coarse that their sum has 8 bits and is exact in 16: the truth does not round it, and so
    would be another row, whose statistics float32 must not be held to."""
    x, residual = call["x"], call["residual"]
    if case.params.get("affine") == "float32":  # a float32 stream: its sums need no grid
        call["residual"] = residual.float()
    elif x.dtype != torch.float32:
        top = torch.maximum(x.abs(), residual.abs()).float().nan_to_num(0.0).amax(-1, keepdim=True)
        step = torch.exp2(torch.floor(torch.log2(top.clamp_min(1e-30))) - 6)
        call["x"], call["residual"] = (((t.float() / step).round() * step).to(t.dtype) for t in (x, residual))
    return parameters(call, case, gen)
