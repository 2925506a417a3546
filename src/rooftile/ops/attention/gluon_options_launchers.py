"""How FlashAttention's forward in Gluon is launched with a window, a mask, a soft cap or sinks, or on ragged sequences: gluon_options_kernels.py has the kernel."""

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from rooftile.core.kernel import Kernel
from rooftile.ops._shared.launch import DRY, cdiv, launch, launch_described, resident
from rooftile.ops.attention.gluon_launchers import HOPPER, L2_BYTES, NARROW, ROWS, WIDE, WIDEST, _tensor
from rooftile.ops.attention.gluon_options_kernels import RAGGED_ROWS, forward
from rooftile.ops.attention.mask_kernels import pack_bits, span_bits
from rooftile.ops.attention.masks import bits, distinct
from rooftile.ops.attention.options_refusals import WIDEST_CAP, too_small_in_a_window
from rooftile.ops.attention.refusals import for_the_copy_engine, wider_values
from rooftile.ops.attention.tile_list_kernels import FIELDS, list_tiles
from rooftile.ops.attention.triton_tiles import LOG2E

EVERYWHERE = 1 << 30  # how far a window reaches on a side without a bound


def _reach(call):
    return tuple(EVERYWHERE if call[n] < 0 else call[n] for n in ("left", "right"))


def tile_list(q, k, cu, lengths, reach, programs, rows):
    """(the list of tiles of so many rows, how many of `programs` programs are to take from it). `cu`: both offsets of ragged sequences, whose longest `lengths`
    are; or (), where q and k are [B, T, H, D] and [B, S, G, D] of these lengths."""
    (h, d), (t, s) = q.shape[-2:], lengths
    if cu:
        b, queries, keys = cu[0].shape[0] - 1, q.shape[0], k.shape[0]
        most = h * (queries // rows + b)
    else:
        b, queries, keys, cu = q.shape[0], 0, 0, (q, q)
        most = h * cdiv(t, rows) * b
    tiles = q.new_empty(1 + most, FIELDS, dtype=torch.int32)
    programs = min(programs, most)
    near = L2_BYTES * (h // k.shape[-2]) // (2 * d * q.element_size())
    pieces = min(16, cdiv(cdiv(t, rows) * h, 1024))
    launch(list_tiles, (b, max(1, pieces)), tiles, *cu, b, h, t, s, queries, keys, most, 2 * (sum(reach) + 1), near, programs,
           RAGGED=queries > 0, BLOCK_M=rows, BLOCK=1024, num_warps=4)  # fmt: skip
    return tiles, programs


def _ragged(x, rows):
    """The TMA view of [M, H, D] in boxes of `rows` rows, which clips at the end of any slice: gluon_options_kernels.py says how."""
    (_, h, d), (stride, stride_h, _), many = x.shape, x.stride(), RAGGED_ROWS.value
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=5)
    return TensorDescriptor(x, [2 * many - 1, 2 * many - 1, h, many, d], [(1 << 34) - stride, stride, stride_h, stride, 1],
                            [1, 1, 1, rows, d], layout)  # fmt: skip


def packed_bits(mask, rows):
    """Of a mask [B, H, T, S]; spans are of tiles of so many queries, from key to key."""
    b, h = distinct(mask)
    t, s = mask.shape[2:]
    tiles, across = b * h * cdiv(t, rows), cdiv(s, 128)
    words, any_set, spans = (
        mask.new_empty(tiles, *n, dtype=torch.int32) for n in ((rows // ROWS, across, 128, 2), (rows // ROWS, across), (2,))
    )
    launch(pack_bits, (any_set.numel(),), words, any_set, mask.view(torch.uint8), h, t, s, cdiv(t, rows) * (rows // ROWS), across, *mask.stride(),
           num_warps=4)  # fmt: skip
    launch(span_bits, (tiles,), spans, any_set, across, ROWS=rows // ROWS, BLOCK=128, num_warps=4)
    return bits(words, spans, b, h)


def _forward(q, k, v, cu, lengths, reach, scale, softcap, sinks, config, mask=None):
    """`cu` and `lengths` as in `tile_list`."""
    (h, d), t = q.shape[-2:], lengths[0]
    out = q.new_empty(q.shape)
    lse = q.new_empty((h, q.shape[0]) if cu else (q.shape[0], h, t), dtype=torch.float32)
    rows = config["groups"] * ROWS
    tiles, programs = tile_list(q, k, cu, lengths, reach, resident(q, 1), rows)
    masked = (tiles, tiles, 0, 0) if mask is None else packed_bits(mask, rows)
    sunk = (lse, 0) if sinks is None else (sinks, sinks.stride(0))
    factors = (softcap * LOG2E, 2 * LOG2E * scale / softcap) if softcap else (scale * LOG2E, 0.0)

    def view(x, rows):
        return _ragged(x, rows) if cu else _tensor(x, rows, d)

    tensors = (view(q, ROWS), view(k, config["block_n"]), view(v, config["block_n"]), view(out, ROWS))
    launch_described(forward, (programs,), lse, tiles, *tensors, *factors, *reach, h, t, lse.shape[-1],
                     *masked, *sunk, GROUPS=config["groups"], SLOTS=config["slots"], STAGES=config["stages"], SHARED_BY=h // k.shape[-2], Q_REGISTERS=config["q_registers"],
                     BITS=mask is not None, CAPS=softcap > 0, SINKS=sinks is not None, REGISTERS=config["registers"], num_warps=4)  # fmt: skip
    return out, lse


def attention_options(q, k, v, sinks, bias, constant_bias, mask, seed, scale, left, right, softcap, p, deterministic=False, *, config):
    return _forward(q, k, v, (), (q.shape[1], k.shape[1]), _reach({"left": left, "right": right}), scale, softcap, sinks, config, mask)


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
    cu = (cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous())
    return _forward(q, k, v, cu, (max_seqlen_q, max_seqlen_k), _reach({"left": left, "right": right}), scale, softcap, sinks, config)


def _refuse(d):
    def refuse(call):
        q = call["q"]
        if not q.is_cuda and not DRY:
            return f"it needs a Hopper GPU, the tensor is on {q.device}"
        if q.shape[-1] != d:
            return f"D={q.shape[-1]}, it is written for {d}"
        asked = [n for n in ("bias", "constant_bias", "seed") if call.get(n) is not None]
        if asked:
            return f"it takes a window, a mask, a soft cap and sinks alone, and the call has {', '.join(asked)}"
        if call["softcap"] > WIDEST_CAP:
            return f"a soft cap of {call['softcap']:g}: it knows scores of caps up to {WIDEST_CAP:g}"
        if call.get("mask") is not None and d == 256:
            return "a mask at D=256: its bits lie in blocks of 128 keys, and a step has 64"
        if call.get("mask") is not None and call["left"] >= 0:
            return f"a mask and a window of {call['left']} keys to the left: tiles begin at a window's edge, a mask's bits lie in blocks of 128 keys"
        if not call["scale"] > 0:
            return f"scale={call['scale']} is not positive, and the running maximum is taken before scaling"
        return wider_values(call) or for_the_copy_engine({n: call[n] if q.dim() == 4 else call[n][None] for n in "qkv"})

    return refuse


def _declines(d):
    def declines(call):
        reach = sum(_reach(call)) + 1
        if d == 64 and reach < 512:
            return f"a window of {reach} keys is a few steps a tile, and those of D=64 are short beside what a tile begins and ends with"
        return too_small_in_a_window(call)

    return declines


def _pick_narrow(call):
    """A third group where `gluon` of the plain operator has one, not in a window, whose tiles are short, nor where a cap or a mask's bits want its registers."""
    long = (call["max_seqlen_q"] if call["q"].dim() == 3 else call["q"].shape[1]) >= 4096
    return NARROW[long and call["left"] < 0 and not call["softcap"] and call.get("mask") is None]


def _all(run):
    idea = "gluon's steps on tiles from a list made on the device, whose keys have two edges"
    said = {"limits": HOPPER, "architectures": (90,)}
    return (
        Kernel("gluon", run, f"{idea}; D = 64", _refuse(64), NARROW, _pick_narrow, declines=_declines(64), **said),
        Kernel("gluon.wide", run, "the same for D = 128", _refuse(128), WIDE, declines=_declines(128), **said),
        Kernel("gluon.widest", run, "the same for D = 256", _refuse(256), WIDEST, declines=_declines(256), **said),
    )


KERNELS = _all(attention_options)
VARLEN = _all(attention_varlen)[:2]  # with maps of five axes D = 256 would spill
