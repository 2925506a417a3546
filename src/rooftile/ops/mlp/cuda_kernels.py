"""The products around gelu for Hopper in CUDA C++, with gelu, or its gradient and the bias's, beside the products."""

import torch

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.cuda.tensor_map import TensorMap
from rooftile.ops._shared.cuda_rows import ADD_ROWS, add_rows
from rooftile.ops._shared.launch import cdiv, processors
from rooftile.ops.mlp import composed_kernels as composed
from rooftile.ops.mlp.refusals import not_whole, whole

V1 = Source.beside(__file__, "v1_hopper.cu")
BLOCK_M = 128
AHEAD = 4 * 8 * 32 * 16  # bytes of pre that four warps have asked for
LONG = 2560  # summands from which on the vendor's products are so long that little is left to hide behind them


def _tile(x, act, config):
    """The template arguments, and bytes of dynamic shared memory (struct Tile): the ring, and a tile on its way out."""
    n, k, stages, lag = (config[name] for name in ("BLOCK_N", "BLOCK_K", "STAGES", "LAG"))
    kind = "GeluTanh" if act == "tanh" else "Gelu"
    return f"{CTYPE[x.dtype]}, {kind}, {n}, {k}, {stages}, {lag}", stages * (BLOCK_M + n) * k * 2 + BLOCK_M * n * 2


def _blocks(x, tiles):
    return min(tiles, processors(x))


def mlp(x, weight1, bias1, weight2, bias2, approximate, *, config):
    def activated(rows, weight, bias, approximate):
        rows, weight = whole(rows), whole(weight)
        (m, k), f = rows.shape, weight.shape[0]
        pre, h = (rows.new_empty(m, f) for _ in range(2))
        tile, shared = _tile(rows, approximate, config)
        n, step = config["BLOCK_N"], config["BLOCK_K"]
        maps = TensorMap(rows, (BLOCK_M, step), 2 * step), TensorMap(weight, (n, step), 2 * step)
        launch(V1, f"mlp_forward<{tile}>", _blocks(rows, cdiv(m, BLOCK_M) * cdiv(f, n)), 384, pre, h, *maps, rows if bias is None else bias.contiguous(), m, f,
               cdiv(k, step), 0 if bias is None else f, config["GROUP"], shared=shared)  # fmt: skip
        return pre, h

    return composed.forward(x, weight1, bias1, weight2, bias2, approximate, activated)


def mlp_backward(dout, x, weight1, bias1, weight2, bias2, pre, h, approximate, *, config):
    def sloped(g, weight, pre, bias, approximate):
        g, weight, pre = whole(g), whole(weight), pre.contiguous()
        (m, k), f = g.shape, weight.shape[1]
        dpre, partial = g.new_empty(m, f), g.new_empty(cdiv(m, BLOCK_M), f, dtype=torch.float32)
        tile, shared = _tile(g, approximate, config)
        n, step = config["BLOCK_N"], config["BLOCK_K"]
        maps = TensorMap(g, (BLOCK_M, step), 2 * step), TensorMap(weight, (step, 64), 128)
        launch(V1, f"mlp_backward<{tile}>", _blocks(g, cdiv(m, BLOCK_M) * cdiv(f, n)), 384, dpre, partial, *maps, pre, m, f, cdiv(k, step), config["GROUP"],
               shared=shared + AHEAD)  # fmt: skip
        dbias = g.new_empty(0 if bias is None else f, dtype=g.dtype if bias is None else bias.dtype)
        if bias is not None:
            add_rows(partial, dbias)
        return dpre, dbias

    return composed.backward(dout, x, weight1, bias1, weight2, bias2, pre, h, approximate, sloped)


def _refuse(names, rows, weight):
    """For the product that reads `names`, of these rows and this weight."""

    def refuse(call):
        x = call[rows]
        if x.dtype == torch.float32:
            return f"{rows} is float32, its products are of 16-bit numbers"
        return not_whole(call, names, rows, weight) or off_gpu(x)

    return refuse


def _declines(rows, weight):
    """Of the same: where the vendor's products are the faster."""

    def declines(call):
        x, f = call[rows], call[weight].numel() // call[rows].shape[-1]
        k, tiles = x.shape[-1], cdiv(x.numel() // x.shape[-1], BLOCK_M) * cdiv(f, 256)
        if k > LONG:
            return f"sums of {k} numbers: from {LONG} on the vendor's products are faster"
        need = processors(x)
        return f"{tiles} tiles of {BLOCK_M} x 256 for {need} multiprocessors" if tiles < need else None

    return declines


CONFIGS = tuple(
    {"BLOCK_N": n, "BLOCK_K": k, "STAGES": s, "LAG": lag, "GROUP": g}
    for n, k, s, lag, g in ((256, 64, 3, 0, 16), (256, 64, 3, 1, 16), (256, 32, 6, 2, 16), (256, 32, 6, 1, 16), (256, 32, 6, 2, 8), (192, 64, 4, 1, 16))
)
LIMITS = Limits(registers=168, shared_bytes=227 * 1024)


def _kernel(run, idea, sources, *reads):
    names, rows, weight = reads
    return Kernel("cuda.v1_hopper", run, idea, _refuse(*reads), CONFIGS, limits=LIMITS, architectures=(90,), sources=sources, declines=_declines(rows, weight))


FORWARD = (_kernel(mlp, "gelu on one tile beside the products of the next", (V1,), ("x", "weight1", "bias1"), "x", "weight1"),)
BACKWARD = (
    _kernel(mlp_backward, "gelu's gradient and the bias's on one tile beside the products of the next", (V1, ADD_ROWS), ("dout", "weight2", "pre"), "dout", "weight2"),
)
