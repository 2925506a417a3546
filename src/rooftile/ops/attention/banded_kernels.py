"""Attention's gradient for Hopper in CUDA C++ where queries see a window or what a mask shows, have sinks, or sequences lie one behind another:
cuda_kernels.py's kernel over the blocks of queries that see a tile of keys; what a sink takes is in lse. For sequences a kernel of one block writes where each lies and whose tile
every block has: nothing waits for the host."""

import torch

from rooftile.core.kernel import Kernel
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.cuda.tensor_map import SliceMap
from rooftile.ops._shared.cuda_partials import ADD_ROWS, add_rows
from rooftile.ops._shared.launch import cdiv
from rooftile.ops.attention.cuda_kernels import (
    BITS,
    KEYS,
    LIMITS,
    LOG2E,
    V5,
    Window,
    backward,
    finish_keys,
    shared_bytes,
    sums_of_keys,
    walked,
)
from rooftile.ops.attention.cuda_kernels import queries as unmasked
from rooftile.ops.attention.masks import distinct
from rooftile.ops.attention.options_refusals import WIDEST_CAP, too_small_in_a_window
from rooftile.ops.attention.refusals import for_the_copy_engine, wider_values

LONG = 4096  # queries of a walk
SINKS = Source.beside(__file__, "sinks.cu")
CHUNK = 256  # of whose queries a block of it adds what a sink's gradient is made of


def queries(d, ordered, t, left, right):
    """Of a step, for some t queries of a sequence, as cuda_kernels.queries: 80 where edges, if there are any, cut few of the blocks of a walk."""
    if d != 128 or ordered:
        return 8192 // d
    if max(left, right) < 0:
        return unmasked(d, False, ordered, t)
    return 80 if min(t, left + right + KEYS if min(left, right) >= 0 else t) >= LONG else 8192 // d


def sinks_gradient(sinks, dout, dlse, out, lse):
    """[H], of dout and out [B, T, H, D], lse and its gradient [B, H, T]; without sinks nothing."""
    if sinks is None:
        return out.new_empty(0)
    b, t, h, d = out.shape
    parts = lse.new_empty(b * cdiv(t, CHUNK), h)
    launch(SINKS, f"sink_parts<{CTYPE[out.dtype]}, {CTYPE[sinks.dtype]}, {d}>", parts.numel(), 256, parts, sinks, sinks.stride(0), dout, out,
           lse.contiguous(), dlse.contiguous(), h, t, *dout.stride()[:3], *out.stride()[:3])  # fmt: skip
    dsinks = sinks.new_empty(h)
    add_rows(parts, dsinks)
    return dsinks


def _options(ordered):
    def run(dout, dlse, q, k, v, sinks, bias, constant_bias, mask, seed, out, lse, scale, left, right, softcap, p, deterministic=False):
        t, d = q.shape[1], q.shape[3]
        # 80 capped ones would spill, and bits come 128 at a time
        m = 8192 // d if softcap or mask is not None else queries(d, ordered, t, left, right)
        dsinks = sinks_gradient(sinks, dout, dlse, out, lse)
        made = backward(ordered, m, dout, q, k, v, out, lse, left < 0 <= right, scale, window=Window(left, right, softcap, dlse, mask))
        return *made, dsinks, q.new_empty(0)

    return run


def _varlen(ordered):
    def run(dout, dlse, q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, seed, out, lse, max_seqlen_q, max_seqlen_k, scale, left, right, softcap, p,
            deterministic=False):  # fmt: skip
        (t, h, d), (s, g) = q.shape, k.shape[:2]
        dsinks = sinks_gradient(sinks, *(x.unsqueeze(0) for x in (dout, dlse, out, lse)))
        dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
        cu_q, cu_k, sequences = cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous(), cu_seqlens_q.shape[0] - 1
        m = 8192 // d if softcap else queries(d, ordered, t // max(1, sequences), left, right)
        blocks, tiles = t // m + sequences, s // KEYS + sequences  # at most: each may leave a part of its last one empty
        spans, of_tile, of_block = (q.new_empty(n, dtype=torch.int32) for n in (8 * (sequences + 1), tiles, blocks))
        turn = q.new_empty(h * blocks, 2, dtype=torch.int32)
        sums = q.new_empty(h * blocks, 2, m * d // 2, dtype=torch.float32)
        rows = q.new_empty(h * blocks, 2, m, dtype=torch.float32)  # lse to base 2 and delta of each block of queries
        # In a window all walks have one length: they stay as far apart as they begin.
        group = walked(4, h // g, tiles * h) if left < 0 <= right and not ordered else h // g
        walks = h // g // group
        key_sums = sums_of_keys(k.unsqueeze(0), tiles) if walks > 1 else (rows, rows)
        of_m = "" if m == 8192 // d else f", {m}"
        kind, flags = f"{CTYPE[q.dtype]}, {d}", f"{str(ordered).lower()}, {m}, {str(walks > 1).lower()}, {str(softcap > 0).lower()}"
        launch(V5, f"order<{CTYPE[cu_q.dtype]}, {d}{of_m}>", 1, 1024, spans, of_tile, of_block, cu_q, cu_k, sequences, t, s, tiles, blocks)
        launch(V5, f"prepare_ragged<{kind}{of_m}>", h * blocks * (m * d // 2048), 256, sums, turn, rows, spans, of_block, dout, out, lse.contiguous(),
               dlse.contiguous(), h, t, blocks, 0, *dout.stride()[:2], 0, *out.stride()[:2])  # fmt: skip
        maps = [SliceMap(x, n, 64, 128) for x, n in ((q, m), (k, KEYS), (v, KEYS), (dout, m))]
        factor = 2 * scale / softcap if softcap else scale
        launch(V5, f"attention_backward_ragged<{kind}, {flags}>", tiles * g * walks, 384, *maps, dk, dv, sums, *key_sums, turn, rows, spans, of_tile, g,
               walks, group, blocks, max_seqlen_k, scale, factor * LOG2E, softcap * LOG2E, left, right, shared=shared_bytes(d, m))  # fmt: skip
        launch(V5, f"finish_ragged<{kind}{of_m}>", h * blocks * 2, m * d // 64, dq, sums, spans, of_block, h, t, blocks, 0, *dq.stride()[:2],
               scale)  # fmt: skip
        if walks > 1:
            finish_keys(dk.unsqueeze(0), dv.unsqueeze(0), key_sums, scale, spans, of_tile, max_seqlen_k, "true")
        return dq, dk, dv, dsinks

    return run


def _refuse(call):
    asked = ["dropout" if n == "seed" else n for n in ("bias", "constant_bias", "seed") if call.get(n) is not None]
    if asked:
        return f"it takes a window, a mask, a soft cap and sinks alone, and the call has {', '.join(asked)}"
    d = call["q"].shape[-1]
    if call["softcap"] > 0 and d != 128:
        return f"D={d} and a soft cap of {call['softcap']:g}: it caps scores of D=128"
    if call["softcap"] > WIDEST_CAP:
        return f"a soft cap of {call['softcap']:g}: it knows scores of caps up to {WIDEST_CAP:g}"
    if d not in (64, 128):
        return f"D={d}, it is written for 64 and 128"
    return wider_values(call) or for_the_copy_engine(call) or off_gpu(call["q"])


def _refuse_in_turn(call):
    mask, (_, _, h, _), g = call["mask"], call["q"].shape, call["k"].shape[2]
    if mask is not None and h > g and distinct(mask)[1] > 1:
        return f"{h} heads share {g} of keys and have masks of their own: a walk through several heads reads one mask"
    return _refuse(call)


def _refuse_packed(call):
    return _refuse({**call, **{n: call[n].unsqueeze(0) for n in ("dout", "q", "k", "v", "out")}})


def _unless_in_turn(refuse):
    """The kernel whose order of additions is the hardware's does not take a call that asks for the same bits every time."""
    return lambda call: "the call is deterministic, and here dq is summed by atomics" if call["deterministic"] else refuse(call)


def _both(run, sources, refuse, refuse_in_turn):
    said = {"limits": LIMITS, "architectures": (90,), "sources": sources, "declines": too_small_in_a_window}
    free, idea = _unless_in_turn(refuse), "blocks of queries that see a tile of keys"
    return (
        Kernel("cuda.v5_hopper", run(False), idea, free, varies="dq is summed by atomics", **said),
        Kernel("cuda.v5_hopper_ordered", run(True), "the same, tiles of keys add to dq in turn", refuse_in_turn, **said),
    )


BACKWARD = _both(_options, (V5, BITS, SINKS, ADD_ROWS), _refuse, _refuse_in_turn)
VARLEN_BACKWARD = _both(_varlen, (V5, SINKS, ADD_ROWS), _refuse_packed, _refuse_packed)
