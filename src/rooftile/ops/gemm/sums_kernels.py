"""linear's gradients with the bias's beside the weight's, for Hopper in CUDA C++ (cuda/v2_sums.cu): dout is not read once more for it."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.ops._shared.hopper_products import BLOCK_M, LIMITS, across, cannot
from rooftile.ops._shared.launch import cdiv, processors
from rooftile.ops._shared.products import product
from rooftile.ops.gemm.reference import flat

V2 = Source.beside(__file__, "v2_sums.cu")
# A step is BLOCK_K rows of BLOCK_N columns of x beside 128 of dout, STAGES of them are under way.
CONFIGS = tuple({"BLOCK_N": n, "BLOCK_K": k, "STAGES": s} for n, k, s in ((256, 64, 4), (192, 64, 5), (256, 32, 8)))
BUSY = 3 / 4  # of the multiprocessors: with fewer at work the vendor's product and a pass over dout take as long
STEPS = 64  # of a part: shorter ones are over before adding the parts up is worth it


def _tiles(f, k, config):
    return cdiv(f, BLOCK_M) * cdiv(k, config["BLOCK_N"])


def weight_gradient(g, x, config):
    """gᵀ x [F, K] of g [M, F], x [M, K], and the sums of g's columns."""
    (m, f), k = g.shape, x.shape[1]
    tiles, steps = _tiles(f, k, config), cdiv(m, config["BLOCK_K"])
    parts = min(max(processors(g) // tiles, 1), steps)
    partial, sums = g.new_empty(parts, f, k, dtype=torch.float32), g.new_empty(parts, f, dtype=torch.float32)
    instance = f"weight_gradient<{CTYPE[g.dtype]}, {config['BLOCK_N']}, {config['BLOCK_K']}, {config['STAGES']}>"
    shared = config["STAGES"] * (BLOCK_M + config["BLOCK_N"]) * config["BLOCK_K"] * 2
    launch(V2, instance, tiles * parts, 384, partial, sums, across(g, config), across(x, config), f, k, steps, parts, shared=shared)
    dweight, dbias = g.new_empty(f, k), g.new_empty(f)
    launch(V2, f"add_parts<{CTYPE[g.dtype]}>", cdiv(max(f * k // 8, f), 256), 256, dweight, dbias, partial, sums, f * k, f, parts)
    return dweight, dbias


def linear_backward(dout, x, weight, bias, *, config):
    g = flat(dout)
    # PyTorch's product of 16-bit numbers on a CPU, where this is simulated, takes what lies between rows for numbers
    dx = product(g, weight) if g.is_cuda else product(g, weight, dtype=torch.float32).to(g.dtype)
    return dx.view(x.shape), *weight_gradient(g, flat(x), config)


def _refuse(call):
    if call["bias"] is None:
        return "there is no bias: the vendor's product makes the weight's gradient"
    g, x = flat(call["dout"]), flat(call["x"])
    if (why := cannot(g.t(), x)) is not None:
        return why
    for name, t in (("dout", g), ("x", x)):
        if t.stride(1) != 1:
            return f"rows of {name} {list(t.shape)} have strides {list(t.stride())}, and it reads elements that lie side by side"
    return None


def _declines(call):
    g, x = flat(call["dout"]), flat(call["x"])
    there, config = processors(g), CONFIGS[0]
    tiles, steps = _tiles(g.shape[1], x.shape[1], config), cdiv(g.shape[0], config["BLOCK_K"])
    parts = there // tiles
    if not parts:
        return f"{tiles} tiles of {BLOCK_M} x {config['BLOCK_N']} for {there} multiprocessors"
    if parts * tiles < BUSY * there:
        return f"{tiles} tiles in {parts} part{'s' * (parts > 1)} leave {there - parts * tiles} of {there} multiprocessors without work"
    return f"{steps} steps in {parts} parts: a part has at least {STEPS}" if steps < STEPS * parts else None


LINEAR_BACKWARD = Kernel(
    "cuda.v2_sums", linear_backward, "the bias's gradient from the tiles that make the weight's", _refuse, CONFIGS, limits=LIMITS, architectures=(90,),
    sources=(V2,), declines=_declines,
)  # fmt: skip
