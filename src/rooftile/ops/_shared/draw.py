"""What specs share: how a case's inputs are drawn."""

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


def _angles(shape, gen):
    """Angles a model could ask for: position times a frequency that falls with the column."""
    places, n = shape
    return torch.arange(places, device=gen.device)[:, None] * 1e4 ** (-torch.arange(n, device=gen.device) / max(n, 1))


def cosines(shape, dtype, gen, dims):
    """float32 whatever the case's dtype, as tables are kept."""
    return _angles(shape, gen).cos().float()


def sines(shape, dtype, gen, dims):
    return _angles(shape, gen).sin().float()
