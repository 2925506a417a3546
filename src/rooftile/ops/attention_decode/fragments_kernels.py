"""Keys and values as the tensor cores take them, in CUDA C++ (cuda/v2_fragments.cu).

Floor: as triton_kernels.py has it, bytes. Of 8 bits 16 keys of 128 and their values are 4 KB, for which a multiprocessor at 4.2 TB/s has 230 cycles at 1.76 GHz and
so 920 instructions: some 200 are wanted, 64 of them conversions. Three tiles a warp and 16 warps are 128 KB on their way, where the memory asks for 22.
"""

from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rooftile.core.kernel import Kernel, Limits
from rooftile.cuda.launch import CTYPE, launch, off_gpu
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, processors
from rooftile.ops.attention_decode.triton_kernels import splits_of

V2 = Source.beside(__file__, "v2_fragments.cu")
KEYS = 16  # of a tile
BATCH = 65535  # sequences: a grid's third axis
ROWS = {
    (64, 2): 32,
    (128, 1): 32,
    (128, 2): 16,
    (256, 1): 8,
}  # that share keys, at most, by a head's numbers and their bytes: so many have registers
RESIDENT = (16, 8)  # warps a multiprocessor that have registers, of up to 8 rows and of more
SHARED = 208 * 1024  # for tiles, of 227 KB: up to eight blocks have a KB each beside them, and what warps tell each other
LIMITS, ARCHITECTURES = Limits(shared_bytes=227 * 1024), (90, 100, 101, 103, 110)  # which have that much
CONFIGS = tuple({"warps": w, "stages": s} for w, s in ((16, 3), (4, 3), (8, 3), (12, 2), (12, 4)))


@dataclass(frozen=True)
class Plan:
    """How a call is dealt out: rows that share keys; a block's warps and shared memory; blocks a multiprocessor; shares of a sequence, and when the last ends."""

    rows: int
    warps: int
    shared: int
    per_sm: int
    splits: int
    end: float

    @staticmethod
    def of(q, k_cache, block_table, window, config):
        (b, t, h, d), (_, page, g) = q.shape, k_cache.shape[:3]
        room, rows = page if block_table is None else block_table.shape[1] * page, t * h // g
        resident, tile = RESIDENT[rows > 8], config["stages"] * 2 * KEYS * d * k_cache.itemsize
        warps = min(config["warps"], resident, SHARED // tile)
        shared = warps * max(tile, rows * d * 4)
        per_sm = min(resident // warps, SHARED // shared)
        tiles = cdiv(min(room, window + t - 1 + KEYS) if window else room, warps * KEYS)
        if q.device.type == "cpu":  # simulated: few keys, and yet shares
            return Plan(rows, warps, shared, per_sm, min(3, max(1, tiles)), 0.0)
        return Plan(rows, warps, shared, per_sm, *splits_of(b * g, tiles, per_sm * processors(q)))


def decode(q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, *, config):
    b, t, h, d = q.shape
    (pages, page, g), paged = k_cache.shape[:3], block_table is not None
    out, lse = q.new_empty(b, t, h, d), q.new_empty(b, h, t, dtype=torch.float32)
    if not out.numel():
        return out, lse
    if q.stride(-1) != 1 or any(s % 4 for s in q.stride()[:3]) or q.data_ptr() % 8:  # it is read 8 bytes at a time
        q = q.clone(memory_format=torch.contiguous_format)  # also where it is dense already, and begins between
    plan = Plan.of(q, k_cache, block_table, window, config)
    splits = plan.splits
    part, part_max, part_sum = lse, lse, lse
    if splits > 1:
        part = q.new_empty(splits, b, t, h, d, dtype=torch.float32)
        part_max, part_sum = (q.new_empty(splits, b, t, h, dtype=torch.float32) for _ in range(2))
    table, sink = lengths if block_table is None else block_table, q if sinks is None else sinks
    ks, vs = (lse if x is None else x for x in (k_scale, v_scale))
    types = f"{CTYPE[q.dtype]}, {CTYPE[k_cache.dtype]}, {CTYPE[sink.dtype]}, {d}, {cdiv(plan.rows, 8)}, {str(paged).lower()}"
    room = table.shape[1] * page if paged else page
    launch(V2, f"shares<{types}, {config['stages']}, {plan.warps}, {plan.per_sm}>", (splits, g, b), plan.warps * 32, out, lse, part, part_max, part_sum,
           q, k_cache, v_cache, lengths, table, sink, ks, vs, 2 * b * room * g * d * k_cache.itemsize, t, h // g, room, pages, page, window,
           int(sinks is not None), int(k_scale is not None), int(v_scale is not None), scale, softcap, *q.stride()[:3], *k_cache.stride()[:3],
           *v_cache.stride()[:3], lengths.stride(0), table.stride(0), table.stride(-1), sink.stride(0), ks.stride(0), vs.stride(0),
           shared=plan.shared)  # fmt: skip
    if splits > 1:
        launch(V2, f"combine<{CTYPE[q.dtype]}, {CTYPE[sink.dtype]}, {d}>", b * t * h, d, out, lse, part, part_max, part_sum, sink, b * t * h, t, h, splits,
               int(sinks is not None), sink.stride(0))  # fmt: skip
    return out, lse


def attention_decode(q, k_cache, v_cache, lengths, block_table, sinks, scale, window, softcap, *, config):
    return decode(q, k_cache, v_cache, lengths, None, None, block_table, sinks, scale, window, softcap, config=config)


def attention_decode_e4m3(q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, *, config):
    return decode(q, k_cache, v_cache, lengths, k_scale, v_scale, block_table, sinks, scale, window, softcap, config=config)


def _refuse(call):
    q, table = call["q"], call["block_table"]
    (_, t, h, d), (_, page, g) = q.shape, call["k_cache"].shape[:3]
    if q.dtype == torch.float32:
        return "float32 is not for the tensor cores"
    size = call["k_cache"].itemsize
    if (d, size) not in ROWS:
        return f"a key is {d} numbers, {d * size} bytes; it takes keys of 128 and 256 bytes"
    if t * h // g > ROWS[d, size]:
        return f"{t} queries of {h // g} heads are {t * h // g} rows that share keys, it takes {ROWS[d, size]} of {d * size} bytes"
    if table is not None and page % KEYS:
        return f"pages have {page} keys, it takes multiples of {KEYS}"
    if (room := page if table is None else page * table.shape[1]) >= 1 << 30:
        return f"there is room for {room} keys a sequence, it counts to {1 << 30}"
    if q.shape[0] > BATCH:
        return f"there are {q.shape[0]} sequences, it takes {BATCH}"
    for name in ("k_cache", "v_cache"):
        x = call[name]
        if x.stride(-1) != 1:
            return f"the last axis of {name} has stride {x.stride(-1)}; a copy of the cache would cost more than the attention"
        apart = [s * x.itemsize for s, n in zip(x.stride()[:3], x.shape) if n > 1]
        if off := next((s for s in apart if s % 16), 0):
            return f"{name} has rows {off} bytes apart, and it reads 16 at a time"
        if not isinstance(x, FakeTensor) and x.data_ptr() % 16:
            return f"{name} begins {x.data_ptr() % 16} bytes past a multiple of 16, and it reads 16 bytes at a time"
    return off_gpu(q)


def _declines(call):
    q, cache = call["q"], call["k_cache"]
    rows = q.shape[1] * q.shape[2] // max(cache.shape[2], 1)
    if cache.itemsize > 1 and rows > 8:
        return f"{rows} rows share keys of 16 bits: Triton's tiles are as fast with 16 and faster with 32"
    return None


def pick(call):
    """Whichever ends first by its own plan: few sequences are a block a multiprocessor, many are more and smaller ones, in one wave."""
    return min(CONFIGS[:2], key=lambda config: Plan.of(*(call[n] for n in ("q", "k_cache", "block_table", "window")), config).end)


_IDEA = "operands as they lie: a lane's part is 16 bytes of a row; a warp's tiles are its own, without a barrier"
KERNELS = (Kernel("cuda.v2_fragments", attention_decode, _IDEA, _refuse, CONFIGS, pick, LIMITS, ARCHITECTURES, (V2,), declines=_declines),)
KERNELS_E4M3 = (Kernel("cuda.v2_fragments", attention_decode_e4m3, _IDEA, _refuse, CONFIGS, pick, LIMITS, ARCHITECTURES, (V2,)),)
