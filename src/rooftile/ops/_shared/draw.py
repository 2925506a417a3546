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
    would be another row, whose statistics float32 must not be held to. With a bias of x it is one grid for all rows, as they share it.
    `stream` is io where float32 parameters stand beside a narrow stream."""
    terms = {n: call[n] for n in ("x", "residual", "x_bias") if call.get(n) is not None}
    if case.params.get("affine") == "float32" and case.params.get("stream") != "io":  # a float32 stream: its sums need no grid
        call["residual"] = call["residual"].float()
    elif call["x"].dtype != torch.float32:
        tops = [t.abs().float().nan_to_num(0.0) for t in terms.values()]
        top = torch.maximum(*tops).amax(-1, keepdim=True) if len(tops) == 2 else torch.cat([t.flatten() for t in tops]).max()
        step = torch.exp2(torch.floor(torch.log2(top.clamp_min(1e-30))) - (6 if len(tops) == 2 else 5))
        call |= {n: ((t.float() / step).round() * step).to(t.dtype) for n, t in terms.items()}
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
