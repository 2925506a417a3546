"""How a call with options, or of ragged sequences, is launched: options_kernels.py has the kernels."""

import math

import torch

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.architecture import architecture
from rooftile.ops._shared.launch import cdiv, launch, off_gpu
from rooftile.ops._shared.philox import scale as kept_scale
from rooftile.ops._shared.philox import threshold
from rooftile.ops.attention.options_kernels import bias_gradient, forward, keys, queries, sinks_gradient
from rooftile.ops.attention.options_reference import counted
from rooftile.ops.attention.options_refusals import WIDEST_CAP
from rooftile.ops.attention.triton_tiles import LOG2E, backward_tiles, dense, forward_tile, widths


def _near(x):
    """A tile of it lies within 32-bit offsets; else it is copied."""
    return x if x is None or max(x.stride()[2:]) < 2**24 else x.contiguous()


class Problem:
    """A call as the kernels take it: what every one of them is given, dense or ragged."""

    def __init__(self, q, k, v, options, ragged=None):
        sinks, added, mask, seed, scale, left, right, softcap, p = options
        self.q, self.k, self.v, self.sinks = dense(q), dense(k), dense(v), sinks
        self.ragged, self.scale = ragged is not None, scale
        self.h, self.d, self.g, self.dv = q.shape[-2], q.shape[-1], k.shape[-2], v.shape[-1]
        if ragged is None:
            (self.b, self.t), self.s, cu = q.shape[:2], k.shape[1], (q, q)
        else:
            *cu, self.t, self.s = ragged
            self.b = cu[0].shape[0] - 1
        self.rows = q.shape[0] if self.ragged else self.b * self.t
        numbers = (left, right, *((scale / softcap, softcap * LOG2E) if softcap else (1.0, scale * LOG2E)), threshold(p), kept_scale(p))
        added, mask = _near(added), None if mask is None else _near(mask.view(torch.uint8))
        pointers = (q if added is None else added, q if mask is None else mask, q if seed is None else seed, *cu)
        totals = (q.shape[0], k.shape[0]) if self.ragged else (0, 0)
        self.common = (*pointers, self.b, self.h, self.t, self.s, *totals, *numbers, counted(self.s),
                       *((0,) * 4 if added is None else added.stride()), *((0,) * 4 if mask is None else mask.stride()))  # fmt: skip
        self.late = added is None and (softcap > 0 or scale > 0)  # the largest product makes the largest score
        self.flags = {
            "LEFT": left >= 0, "RIGHT": right >= 0, "CAPPED": 2 if softcap > WIDEST_CAP else softcap > 0, "ADDED": added is not None, "MASK": mask is not None,
            "DROP": seed is not None, "RAGGED": self.ragged, "GROUP": self.h // max(1, self.g), **widths(self.d, self.dv),
        }  # fmt: skip

    def strides(self, *tensors):
        """Of batch, row and head; one sequence behind another has no batch."""
        return [s for x in tensors for s in ((0, *x.stride()[:2]) if self.ragged else x.stride()[:3])]

    def inputs(self):
        return (self.q, self.k, self.v, *self.strides(self.q, self.k, self.v))


def _forward_of(problem, config, heads=1):
    """`heads`: how many that read one key head are rows of a tile together."""
    x = problem
    out = x.q.new_empty(*x.q.shape[:-1], x.dv)
    lse = x.q.new_empty((x.h, x.rows) if x.ragged else (x.b, x.h, x.t), dtype=torch.float32)
    sinks = x.q if x.sinks is None else x.sinks
    launch(forward, (cdiv(x.t, config["BLOCK_M"] // heads) * x.b * (x.h // heads),), x.q, x.k, x.v, out, lse, sinks, *x.strides(x.q, x.k, x.v),
           sinks.stride(0), *x.common, SINKS=x.sinks is not None, LATE=x.late, HEADS=heads, **x.flags, **config)  # fmt: skip
    return out, lse


def _tile_of(config, name):
    m, n, warps, stages = (config[f"{name}_{x}"] for x in ("m", "n", "warps", "stages"))
    return {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}


def _backward_of(problem, dout, dlse, out, lse, config):
    """dq, dk, dv, dsinks, and what the gradient of a bias is made of."""
    x = problem
    dout, out, lse, dlse = dense(dout), dense(out), lse.contiguous(), dlse.contiguous()
    dq, dk, dv = (t.new_empty(t.shape) for t in (x.q, x.k, x.v))
    lse2, delta = torch.empty_like(lse), torch.empty_like(lse)
    tile = _tile_of(config, "dq")
    launch(queries, (cdiv(x.t, tile["BLOCK_M"]) * x.b * x.h,), dout, dlse, out, lse, lse2, delta, dq, x.scale, *x.strides(dout, out),
           *x.inputs(), *x.common, **x.flags, **tile)  # fmt: skip
    tile = _tile_of(config, "dkv")
    launch(keys, (cdiv(x.s, tile["BLOCK_N"]) * x.b * x.g,), dout, lse2, delta, dk, dv, x.scale, *x.strides(dout), *x.inputs(), *x.common,
           EVEN=not x.ragged and x.t % tile["BLOCK_M"] == 0, **x.flags, **tile)  # fmt: skip
    dsinks = x.q.new_empty(0 if x.sinks is None else x.h, dtype=x.q.dtype if x.sinks is None else x.sinks.dtype)
    if x.sinks is not None:
        where = (1, 0, x.rows, x.rows) if x.ragged else (x.b, x.h * x.t, x.t, x.t)
        launch(sinks_gradient, (x.h,), dsinks, x.sinks, lse2, delta, x.sinks.stride(0), *where, BLOCK=1024, num_warps=4)
    return dq, dk, dv, dsinks, (dout, lse2, delta)


def attention_options(q, k, v, sinks, bias, constant_bias, mask, seed, scale, left, right, softcap, p, deterministic=False, *, config):
    added = bias if constant_bias is None else constant_bias
    added = added if added is None else added.expand(q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    return _forward_of(Problem(q, k, v, (sinks, added, mask, seed, scale, left, right, softcap, p)), config)


def attention_options_packed(
    q, k, v, sinks, bias, constant_bias, mask, seed, scale, left, right, softcap, p, deterministic=False, *, config
):
    return _forward_of(Problem(q, k, v, (sinks, None, None, seed, scale, left, right, softcap, p)), config, q.shape[2] // k.shape[2])


def attention_options_backward(
    dout, dlse, q, k, v, sinks, bias, constant_bias, mask, seed, out, lse, scale, left, right, softcap, p, deterministic=False, *, config
):
    (b, t, h, _), s = q.shape, k.shape[1]
    added = bias if constant_bias is None else constant_bias
    added = added if added is None else added.expand(b, h, t, s)
    x = Problem(q, k, v, (sinks, added, mask, seed, scale, left, right, softcap, p))
    dq, dk, dv, dsinks, (dout, lse2, delta) = _backward_of(x, dout, dlse, out, lse, config)
    dbias = q.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    if bias is not None:
        tile = _tile_of(config, "dq")
        b1, h1 = bias.shape[:2]
        launch(bias_gradient, (cdiv(t, tile["BLOCK_M"]) * cdiv(s, tile["BLOCK_N"]) * b1 * h1,), dout, lse2, delta, dbias, b1, h1, *x.strides(dout),
               *x.inputs(), *x.common, **x.flags, **tile)  # fmt: skip
    return dq, dk, dv, dsinks, dbias


def attention_varlen(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    sinks,
    seed,
    max_seqlen_q,
    max_seqlen_k,
    scale,
    left,
    right,
    softcap,
    p,
    deterministic=False,
    *,
    config,
):
    ragged = (cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous(), max_seqlen_q, max_seqlen_k)
    return _forward_of(Problem(q, k, v, (sinks, None, None, seed, scale, left, right, softcap, p), ragged), config)


def attention_varlen_backward(dout, dlse, q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, seed, out, lse, max_seqlen_q, max_seqlen_k, scale, left, right,
                              softcap, p, deterministic=False, *, config):  # fmt: skip
    ragged = (cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous(), max_seqlen_q, max_seqlen_k)
    problem = Problem(q, k, v, (sinks, None, None, seed, scale, left, right, softcap, p), ragged)
    return _backward_of(problem, dout, dlse, out, lse, config)[:4]


# ---- who takes what ----------------------------------------------------------------------------------------------------------


FORWARD = (
    forward_tile(64, 64, 4, 3),
    forward_tile(64, 64, 4, 2),
    forward_tile(128, 64, 8, 3),
    forward_tile(128, 64, 8, 2),
    forward_tile(128, 32, 8, 2),
    forward_tile(32, 32, 8, 1),
    forward_tile(16, 32, 8, 1),
)
# wgmma's products have 64 rows a warpgroup, 4 warps: with 8 warps on 64 keys, or queries, half of the weights went through shared memory to the others
BACKWARD = (
    backward_tiles((64, 64, 4, 3), (64, 64, 4, 2)),
    backward_tiles((128, 64, 8, 3), (32, 64, 4, 2)),
    backward_tiles((128, 64, 8, 3), (32, 128, 8, 3)),
    backward_tiles((64, 64, 4, 2), (32, 64, 4, 2)),
    backward_tiles((64, 32, 4, 3), (32, 128, 8, 2)),
    backward_tiles((64, 32, 8, 2), (16, 64, 8, 2)),
    backward_tiles((32, 32, 8, 1), (32, 32, 8, 1)),
    backward_tiles((16, 16, 8, 1), (32, 32, 8, 1)),
    backward_tiles((128, 64, 8, 2), (16, 128, 8, 2)),
    backward_tiles((64, 64, 4, 3), (32, 64, 4, 2)),
)
# On sm_90 what bench cases launch spills nothing, but for 120 bytes of ragged queries under Triton 3.6, timed so and the fastest. A mask or bias whose rows lie on no multiple of 16 bytes is loaded by the element, with an address each.
SPILLS = Limits(spill_bytes=128, spill_bytes_elsewhere=256, shared_bytes=227 * 1024)
# Which config, as timed on an H200, by the wider of D and Dv and, between 65 and 128, by what wants registers beside a tile of scores. In float32 a product holds whole
# rows of both factors.
FORWARD_OF = {
    "narrow": 0,
    "wide": 0,
    "cap": 0,
    "dropout": 1,
    "scores": 2,
    "widest": 4,
    "float32": 5,
    "widest float32": 6,
}
BACKWARD_OF = {
    "narrow": 0,
    "narrow shared": 9,
    "wide": 1,
    "cap": 3,
    "dropout": 4,
    "scores": 2,
    "scores before Hopper": 8,
    "narrow masked before Hopper": 2,
    "widest": 5,
    "float32": 6,
    "widest float32": 7,
}


def _by_width(configs, index):
    def pick(call):
        d = max(call["q"].shape[-1], call["v"].shape[-1])
        if call["q"].dtype == torch.float32:
            kind = "widest float32" if d > 128 else "float32"
        elif not 64 < d <= 128:
            shared = "narrow shared" in index and call["k"].shape[-2] < call["q"].shape[-2] and call.get("mask") is None
            kind = "widest" if d > 128 else "narrow shared" if shared else "narrow"
        elif call["seed"] is not None:
            kind = "dropout"
        elif any(call.get(n) is not None for n in ("bias", "constant_bias", "mask")):
            kind = "scores"
        else:
            kind = "cap" if call["softcap"] else "wide"
        if (
            0 < architecture(call["q"]) < 90
        ):  # whose tensor cores want both factors in registers, beside a tile of scores and what is added to them
            masked = [f"{kind} masked before Hopper"] * (call.get("mask") is not None)
            kind = next((x for x in (*masked, f"{kind} before Hopper") if x in index), kind)
        return configs[index[kind]]

    return pick


def _refuse(call):
    q, dv = call["q"], call["v"].shape[-1]
    if not 0 < q.shape[-1] <= 256 or not 0 < dv <= 256:
        return f"D={q.shape[-1]} and values of {dv}: it takes 1 to 256"
    return off_gpu(q)


def _refuse_packed(call):
    given, (h, g) = [n for n in ("bias", "constant_bias", "mask") if call[n] is not None], (call["q"].shape[2], call["k"].shape[2])
    if given:
        return f"{', '.join(given)} of each head: here several are a tile's rows"
    if g == 0 or h // g not in (2, 4, 8, 16):
        return f"{h} heads on {g} of keys: it takes 2, 4, 8 or 16 to one"
    return _refuse(call)


def _declines_packed(call):
    """Where a tile of one head sees hardly more keys than it has rows together with the window's."""
    seen = sum(call[n] for n in ("left", "right")) if min(call["left"], call["right"]) >= 0 else math.inf
    return None if seen < 256 else f"a window of {seen + 1} keys: tiles of one head read hardly more of them"


def _one(run, idea, configs, index):
    return (Kernel("triton", run, idea, _refuse, configs, _by_width(configs, index), SPILLS),)


PACKED = (forward_tile(64, 64, 4, 3), forward_tile(128, 64, 8, 3), forward_tile(32, 32, 8, 1))


def _pick_packed(call):
    return PACKED[2 if call["q"].dtype == torch.float32 or max(call["q"].shape[-1], call["v"].shape[-1]) > 128 else 0]


KERNELS = (
    Kernel("triton.packed", attention_options_packed, "rows are queries and the heads that share their keys: a short window's are read once for all",
           _refuse_packed, PACKED, _pick_packed, SPILLS, declines=_declines_packed),
    *_one(attention_options, "every option, each a constexpr", FORWARD, FORWARD_OF),
)  # fmt: skip
KERNELS_BACKWARD = _one(attention_options_backward, "dq, then dk and dv, then dsinks and the bias's: no atomics", BACKWARD, BACKWARD_OF)
VARLEN = _one(attention_varlen, "a program finds its sequence by its offsets", FORWARD, FORWARD_OF)
VARLEN_BACKWARD = _one(attention_varlen_backward, "the same: dq, then dk and dv, then dsinks", BACKWARD, BACKWARD_OF)
