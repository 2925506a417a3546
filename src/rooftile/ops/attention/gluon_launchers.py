"""How FlashAttention's forward in Gluon is launched: gluon_kernels.py has the kernel."""

import functools
import heapq
import math

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from rooftile.core.kernel import Kernel, Limits
from rooftile.ops._shared.constants import lasting
from rooftile.ops._shared.launch import DRY, cdiv, launch_described, resident
from rooftile.ops.attention.gluon_kernels import forward
from rooftile.ops.attention.refusals import for_the_copy_engine, too_small, wider_values

ROWS = 64  # query rows of a group: what one wgmma takes
L2_BYTES = 24 << 20  # keys and values of the heads worked on at a time: half the L2, queries and outputs pass through too


@functools.lru_cache(maxsize=64)
def _schedule(heads, shared_by, t, d, rows, block_n, causal, programs):
    """(how many entries each program has, then its entries (head << 32 | query tile) padded to a stride; the stride). What a dynamic
    scheduler would do, done once: the next tile goes to whoever is free first, longest first within heads that share the L2."""
    together = 1
    while heads % (together * 2) == 0 and together * 2 * t * d * 4 <= L2_BYTES * shared_by:
        together *= 2
    tiles = cdiv(t, rows)
    if causal:
        order = [(g + h, i) for g in range(0, heads, together) for i in reversed(range(tiles)) for h in range(together)]
    else:
        order = [(h, i) for h in range(heads) for i in range(tiles)]
    free = [(0, p) for p in range(programs)]
    lists = [[] for _ in range(programs)]
    for h, i in order:
        busy, p = free[0]
        lists[p].append(h << 32 | i)
        steps = cdiv(min(t, (i + 1) * rows) if causal else t, block_n)
        heapq.heapreplace(free, (busy + steps + 1, p))  # one more: a tile's output
    stride = max(map(len, lists))
    return (*map(len, lists), *(e for entries in lists for e in entries + [0] * (stride - len(entries)))), stride


def _table(*about):
    return _schedule(*about)[0]


def _tensor(x, rows, width):
    """The TMA view of [B, T, H, D] as [B, H, T, D] in boxes of `rows` rows and `width` columns."""
    (b, t, h, d), (stride_b, stride_t, stride_h, _) = x.shape, x.stride()
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    return TensorDescriptor(x, [b, h, t, d], [stride_b, stride_h, stride_t, 1], [1, 1, rows, width], layout)


def attention(q, k, v, causal, scale, *, config):
    (b, t, h, d), dv = q.shape, v.shape[-1]
    rows, block_n, width = ROWS * config["groups"], config["block_n"], d // config["pieces"]
    out = q.new_empty(b, t, h, dv)
    lse = q.new_empty(b, h, t, dtype=torch.float32)
    programs = min(cdiv(t, rows) * b * h, resident(q, 1))
    shared_by = h // k.shape[2]  # heads that read one key head: the producer alone knows, and the table, of what lies in the L2
    about = (b * h, shared_by, t, (d + dv) // 2, rows, block_n, causal, programs)
    table, stride = lasting(_table, about, q.device), _schedule(*about)[1]
    tensors = (_tensor(q, ROWS, width), _tensor(k, block_n, width), _tensor(v, block_n, dv), _tensor(out, ROWS, dv))
    launch_described(forward, (programs,), lse, table, *tensors, scale * math.log2(math.e), h, t, stride,
                     GROUPS=config["groups"], BLOCK_N=block_n, PIECES=config["pieces"], SLOTS=config["slots"], STAGES=config["stages"],
                     CAUSAL=causal, TAIL=not causal and t % block_n != 0, SHARED_BY=shared_by, Q_REGISTERS=config["q_registers"],
                     REGISTERS=config["registers"], num_warps=4)  # fmt: skip
    return out, lse


def _config(groups, stages, registers, q_registers, block_n=128, slots=2, pieces=1):
    """`pieces` of the head's dimension are brought and multiplied one after the other; `q_registers` holds the first of the queries' there.
    One slot of queries: their memory is refilled, and the next tile begun, when a tile has ended; both groups' outputs share memory."""
    return {"groups": groups, "block_n": block_n, "stages": stages, "pieces": pieces, "slots": slots, "registers": registers,
            "q_registers": q_registers}  # fmt: skip


NARROW = (_config(2, 3, 240, True), _config(3, 3, 160, False))  # D = 64
WIDE = (_config(2, 2, 240, False),)  # D = 128: shared memory is full
LATENT = (_config(2, 2, 240, False, slots=1, pieces=3),)  # D = 192, values of 128
WIDEST = (_config(2, 2, 240, False, block_n=64, slots=1),)  # D = 256


def pick_narrow(call):
    """Long: a third group hides more of the softmax and reads keys a third less often. Short: queries in registers, which QK would wait for at every
    step to be read from shared memory again; a whole tile of 192 rows wastes more, on the diagonal above all."""
    return NARROW[call["q"].shape[1] >= (4096 if call["causal"] else 2048)]


def _refuse(d, dv=None):
    def refuse(call):
        q, k = call["q"], call["k"]
        if not q.is_cuda and not DRY:
            return f"it needs a Hopper GPU, the tensor is on {q.device}"
        if q.shape[-1] != d:
            return f"D={q.shape[-1]}, it is written for {d}"
        if call["v"].shape[-1] != (dv or d):
            return wider_values(call) or f"values of {d}, it is written for {dv}"
        if q.shape[1] != k.shape[1]:
            return f"T={q.shape[1]} and S={k.shape[1]} differ"
        if not call["scale"] > 0:
            return f"scale={call['scale']} is not positive, and the running maximum is taken before scaling"
        return for_the_copy_engine(call)

    return refuse


HOPPER = Limits(shared_bytes=227 * 1024)
KERNELS = (
    Kernel(
        "gluon",
        attention,
        "TMA, warp specialisation, wgmma; D = 64",
        _refuse(64),
        NARROW,
        pick_narrow,
        HOPPER,
        architectures=(90,),
        declines=too_small,
    ),
    Kernel("gluon.wide", attention, "the same for D = 128", _refuse(128), WIDE, limits=HOPPER, architectures=(90,), declines=too_small),
    Kernel(
        "gluon.latent",
        attention,
        "the same for D = 192 and values of 128",
        _refuse(192, 128),
        LATENT,
        limits=HOPPER,
        architectures=(90,),
        declines=too_small,
    ),
    Kernel("gluon.widest", attention, "the same for D = 256", _refuse(256), WIDEST, limits=HOPPER, architectures=(90,), declines=too_small),
)
