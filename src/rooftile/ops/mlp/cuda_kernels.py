"""The products around gelu, or around a gate, for Hopper in CUDA C++, with what comes between them, or its gradient, beside the products."""

import functools

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.cuda_partials import ADD_ROWS, add_rows
from rooftile.ops._shared.hopper_products import BLOCK_M, CONFIGS, LIMITS, across, along, form, too_few, walk
from rooftile.ops._shared.launch import cdiv
from rooftile.ops.mlp import composed_kernels as composed
from rooftile.ops.mlp.refusals import VECTOR, not_whole, whole

V1 = Source.beside(__file__, "v1_hopper.cu")
AHEAD = 4 * 8 * 32 * 16  # bytes of pre that four warps ask for ahead
# More rows of tiles walked together: alone it makes no difference, in a training step, at the device's power, it is the faster.
GATED = CONFIGS[1], CONFIGS[0], *CONFIGS[2:]
LONG = 4096  # summands: beyond them the vendor's products are so long that little is left to hide behind them


ACTS = {"tanh": "GeluTanh", "none": "Gelu", "gelu_tanh": "GeluTanh", "gelu": "Gelu", "silu": "Silu", "relu": "Relu"}


def _instance(name, x, act, config):
    return f"{name}<{CTYPE[x.dtype]}, {act}, {form(config)}>"


def activated(rows, weight, bias, act, config):
    """gelu(pre) of pre = rows weightᵀ + bias, and beside it pre, or with act `Sloped<...>` gelu's slope there."""
    rows, weight = whole(rows), whole(weight)
    (m, k), f = rows.shape, weight.shape[0]
    kept, h = (rows.new_empty(m, f) for _ in range(2))
    maps = along(rows, BLOCK_M, config), along(weight, config["BLOCK_N"], config)
    biased = (rows, 0) if bias is None else (bias.contiguous(), f)
    walk(V1, _instance("mlp_forward", rows, act, config), config, rows, (m, f, k), (kept, h, *maps, *biased))
    return kept, h


def sloped(g, weight, kept, bias, act, config):
    """dpre = (g weight) gelu'(kept), or with act `Slope` (g weight) kept; and the sums of its columns where there is a bias."""
    g, weight, kept = whole(g), whole(weight), kept.contiguous()
    (m, k), f = g.shape, weight.shape[1]
    dpre, partial = g.new_empty(m, f), g.new_empty(cdiv(m, BLOCK_M), f, dtype=torch.float32)
    maps = along(g, BLOCK_M, config), across(weight, config)
    walk(V1, _instance("mlp_backward", g, act, config), config, g, (m, f, k), (dpre, partial, *maps, kept), AHEAD)
    if bias is None:
        return dpre, g.new_empty(0)
    dbias = bias.new_empty(f)
    add_rows(partial, dbias)
    return dpre, dbias


def gated(rows, weight, activation, save, config):
    """pre = rows weightᵀ, gate and up side by side, or None where it is not to be kept; act(gate) up."""
    rows, weight = whole(rows), whole(weight)
    (m, k), f = rows.shape, weight.shape[0] // 2
    pre, h = rows.new_empty(m, 2 * f) if save else None, rows.new_empty(m, f)
    maps = along(rows, BLOCK_M, config), along(weight, config["BLOCK_N"] // 2, config)
    arguments = (h if pre is None else pre, h, *maps, int(save))
    walk(V1, _instance("gated_forward", rows, ACTS[activation], config), config, rows, (m, f, k), arguments, parts=2)
    return pre, h


def gate_sloped(g, weight, pre, activation, config):
    """dpre of dh = g weight, and h once more."""
    g, weight, pre = whole(g), whole(weight), pre.contiguous()
    (m, k), f = g.shape, weight.shape[1]
    dpre, h = g.new_empty(m, 2 * f), g.new_empty(m, f)
    maps = along(g, BLOCK_M, config), across(weight, config)
    walk(V1, _instance("gated_backward", g, ACTS[activation], config), config, g, (m, f, k), (dpre, h, *maps, pre), AHEAD)
    return dpre, h


def mlp(x, weight1, bias1, weight2, bias2, approximate, keep, *, config):
    act = ACTS[approximate] if keep == "pre" else f"Sloped<{ACTS[approximate]}>"
    return composed.forward(x, weight1, bias1, weight2, bias2, functools.partial(activated, act=act, config=config))


def mlp_backward(dout, x, weight1, bias1, weight2, bias2, kept, h, approximate, keep, *, config):
    act = ACTS[approximate] if keep == "pre" else "Slope"
    return composed.backward(dout, x, weight1, bias1, weight2, bias2, kept, h, functools.partial(sloped, act=act, config=config))


def gated_mlp(x, weight1, weight2, activation, residual=None, *, config, save=True):
    return composed.gated_forward(x, weight1, weight2, activation, residual, functools.partial(gated, config=config), save)


def gated_mlp_backward(dout, x, weight1, weight2, pre, activation, *, config):
    return composed.gated_backward(dout, x, weight1, weight2, pre, activation, functools.partial(gate_sloped, config=config))


def _refuse(rows, weight, *others):
    """For the product of these rows and this weight, beside which `others` are read."""

    def refuse(call):
        if call[rows].dtype == torch.float32:
            return f"{rows} is float32, its products are of 16-bit numbers"
        return not_whole(call, (rows, weight, *others), rows, weight) or off_gpu(call[rows])

    return refuse


def _gated_refuse(rows, weight, *others):
    product = _refuse(rows, weight, *others)

    def refuse(call):
        f = call["weight2"].shape[1]
        return (
            f"gate and up are {f} columns each, no multiple of {VECTOR}: up's begin at no whole 16 bytes" if f % VECTOR else product(call)
        )

    return refuse


def _slower(x, m, n, k):
    """Why the vendor's product is the faster, or None."""
    return f"sums of {k} numbers: beyond {LONG} the vendor's products are faster" if k > LONG else too_few(x, m, n)


def _declines(rows, weight):
    def declines(call):
        k = call[rows].shape[-1]
        return _slower(call[rows], call[rows].numel() // k, call[weight].numel() // k, k)

    return declines


def keep(x, weight1, weight2):
    """What gelu's gradient should find: the slope, where these kernels make it and read it; else what gelu was given, which the vendor's epilogues keep."""
    if not x.is_cuda or x.numel() == 0 or weight2.numel() == 0:
        return "pre"
    device = torch.cuda.get_device_properties(x.device)
    if (device.major, device.minor) != (9, 0):
        return "pre"
    (f, k), n, m = weight1.shape, weight2.shape[0], x.numel() // x.shape[-1]
    return "pre" if _slower(x, m, f, k) or _slower(x, m, f, n) else "slope"


def _kernel(run, idea, reads, *sources, refuse=_refuse, configs=CONFIGS):
    return Kernel(
        "cuda.v1_hopper",
        run,
        idea,
        refuse(*reads),
        configs,
        limits=LIMITS,
        architectures=(90,),
        sources=sources,
        declines=_declines(*reads[:2]),
    )


FORWARD = (_kernel(mlp, "gelu on a tile beside the products of the next", ("x", "weight1", "bias1"), V1),)
BACKWARD = (
    _kernel(
        mlp_backward,
        "gelu's gradient and the bias's on a tile beside the products of the next",
        ("dout", "weight2", "kept"),
        V1,
        ADD_ROWS,
    ),
)
GATED_FORWARD = (
    _kernel(
        gated_mlp,
        "the gate on a tile of gate and up beside the products of the next",
        ("x", "weight1"),
        V1,
        refuse=_gated_refuse,
        configs=GATED,
    ),
)
GATED_BACKWARD = (
    _kernel(
        gated_mlp_backward,
        "the gate's gradient, and h again, on a tile beside the products of the next",
        ("dout", "weight2", "pre"),
        V1,
        refuse=_gated_refuse,
        configs=GATED,
    ),
)
