"""FlashAttention forward for Hopper in Gluon with a window, a mask, a soft cap or sinks, of as many keys as there are, and of ragged sequences: what
gluon_kernels.py does, and its steps.

Why this is another kernel than the plain one: which tiles there are is known on the device alone where lengths are, so programs take tiles from a
list made there, one by one; a tile's keys have two edges; and a mask may hide any of them. What that asks for beside the plain kernel:

* tiles of keys begin at the first key that the tile's first query sees, so the window's left edge lies in the first of them, however it is
  aligned; from there on they are visited upwards, and a mask is taken where the first query does not see a tile's last key;
* of a mask a step reads two words a lane, bits in the places of its scores, and a tile visits the keys from the first to the last that any of its
  queries sees: mask_kernels.py makes both;
* a sink joins a row's sum when its tile ends; a soft cap is two functions more a score, three with the weight's exponential: 16 a cycle and
  multiprocessor, so that a step of D = 128 takes half as long again as its products;
* the producer takes a tile by a counter, some steps before it is wanted, and tells its number in shared memory with the queries; -1: no more. At D = 256
  there is room for one tile of queries, and the next is begun when one has ended;
* one sequence behind another: a tensor map of two axes more, which clips at the end of any slice (Triton's ragged descriptors have shown how).
  Rows x of 2^30 are at x - 2^30 + length of the slice, so that those past its end lie past the axis, and arrive as zeros or do not leave. What that
  adds to an address two axes take back: one with the rows' stride, by begin + length, and one by 2^30 times 2^34 elements less a row, which in 64
  bits is 2^30 rows back. So no key or value of a neighbour is ever read, not even to be masked, nor a row of its output touched.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from rooftile.ops.attention.gluon_kernels import (
    K_EMPTY,
    OUT_FREE,
    Q_EMPTY,
    TURN,
    V_EMPTY,
    _arrive,
    _begin,
    _bits,
    _capped,
    _group_barrier,
    _hold,
    _keep,
    _let,
    _load_tile,
    _next,
    _pairs,
    _queries,
    _rows,
    _scores,
    _seen,
    _step,
    _store_tile,
    _wait,
    _weights,
)

RAGGED_ROWS = gl.constexpr(1 << 30)
NEAR_THE_END = gl.constexpr(4)  # steps before a tile's last that the next one is taken: a counter and a row of the list are read by then


@gluon.jit
def _tile(gTiles, i):
    """Tile i of the list: first query, queries and keys of its sequence, where they begin, batch, head. Without a tile, the first one's."""
    at = gTiles + (gl.maximum(i, 0) + 1) * 8
    return gl.load(at), gl.load(at + 1), gl.load(at + 2), gl.load(at + 3), gl.load(at + 4), gl.load(at + 5), gl.load(at + 6)


@gluon.jit
def _walk(row, T, S, left, right, gSpans, i_mask, ALL: gl.constexpr, BLOCK_N: gl.constexpr, BITS: gl.constexpr):
    """(first key, tiles of keys) for queries from `row` on. BITS: of those that a mask lets any of them see, and no window has a left edge."""
    beside = row + S - T  # the key beside the first query
    low = gl.maximum(beside - left, 0)
    end = gl.minimum(gl.minimum(row + ALL, T) + (S - T) + right, S)
    if BITS:
        at = gSpans + (i_mask * gl.cdiv(T, ALL) + row // ALL) * 2
        low = gl.load(at)
        end = gl.minimum(end, gl.load(at + 1))
    return low, gl.maximum(gl.cdiv(end - low, BLOCK_N), 1)


@gluon.jit
def _place(tensor, i_b, i_h, begin, length, row):
    """Where the tensor map has row `row` of a sequence."""
    if len(tensor.block_type.shape) == 5:
        place = (RAGGED_ROWS, begin + length, i_h, RAGGED_ROWS - length + row, 0)
    else:
        place = (i_b, i_h, row, 0)
    return place


@gluon.jit
def _box(sTile, tensor):
    return sTile._reinterpret(tensor.dtype, tensor.block_type.shape, tensor.layout)


@gluon.jit
def _tell(sTold, i, WARPS: gl.constexpr):
    sTold.store(gl.full([1], i, gl.int32, gl.BlockedLayout([1], [32], [WARPS], [0])))


@gluon.jit
def _told(sTold):
    return gl.max(sTold.load(gl.BlockedLayout([1], [32], [4], [0])), 0)


@gluon.jit
def _produce(tQ, tK, tV, gTiles, sQ, sK, sV, sTold, q_full, k_full, v_full, left, right, gSpans, masks_b, masks_h,
             GROUPS: gl.constexpr, SLOTS: gl.constexpr, STAGES: gl.constexpr, SHARED_BY: gl.constexpr, BITS: gl.constexpr):  # fmt: skip
    BLOCK_M: gl.constexpr = sQ.shape[1]
    BLOCK_N: gl.constexpr = sK.shape[1]
    THREADS: gl.constexpr = GROUPS * 128 + 32
    tiles = gl.load(gTiles + 1)
    i_tile = gl.program_id(0)
    i = 0
    stage = 0
    seen = 0
    while i_tile < tiles:
        row, T, S, at_q, at_k, i_b, i_h = _tile(gTiles, i_tile)
        slot = i % SLOTS
        if i >= SLOTS:
            _wait(Q_EMPTY + slot, THREADS)
        _tell(sTold.index(slot), i_tile, 1)
        _group_barrier()
        mbarrier.expect(q_full.index(slot), tQ.block_type.nbytes * GROUPS)
        for w in gl.static_range(GROUPS):
            _load_tile(tQ, _place(tQ, i_b, i_h, at_q, T, row + w * BLOCK_M), q_full.index(slot), _box(sQ.index(slot * GROUPS + w), tQ))
        first, n = _walk(row, T, S, left, right, gSpans, i_b * masks_b + i_h * masks_h, GROUPS * BLOCK_M, BLOCK_N, BITS)
        for j in range(n):
            if j == gl.maximum(n - NEAR_THE_END, 0):
                i_tile = gl.atomic_add(gTiles, 1, sem="relaxed")
            if seen >= STAGES:
                _wait(K_EMPTY + stage, THREADS)
            mbarrier.expect(k_full.index(stage), tK.block_type.nbytes)
            _load_tile(tK, _place(tK, i_b, i_h // SHARED_BY, at_k, S, first), k_full.index(stage), _box(sK.index(stage), tK))
            if seen >= STAGES:
                _wait(V_EMPTY + stage, THREADS)
            mbarrier.expect(v_full.index(stage), tV.block_type.nbytes)
            _load_tile(tV, _place(tV, i_b, i_h // SHARED_BY, at_k, S, first), v_full.index(stage), _box(sV.index(stage), tV))
            seen += 1
            stage = gl.where(stage == STAGES - 1, 0, stage + 1)
            first += BLOCK_N
        i += 1
    slot = i % SLOTS
    if i >= SLOTS:
        _wait(Q_EMPTY + slot, THREADS)
    _tell(sTold.index(slot), -1, 1)
    _group_barrier()
    mbarrier.arrive(q_full.index(slot), count=1)


@gluon.jit
def _bits_of(gBits, i_mask, row, low, T, S, ALL: gl.constexpr, BITS: gl.constexpr):
    """Of masks [64 queries, 128 keys, lanes, 2] where those are of queries from `row` and keys from `low` on."""
    at = gBits
    if BITS:
        at += ((i_mask * gl.cdiv(T, ALL) * (ALL // 64) + row // 64).to(gl.int64) * gl.cdiv(S, 128) + low // 128) * 256
    return at


@gluon.jit
def _open(rS, row, first, T, S, left, right, gBits, scale_log2, twice, BITS: gl.constexpr, CAPS: gl.constexpr):
    """The softmax of a tile's first step, where both edges may be: (p, maximum, sum)."""
    if CAPS:
        rS = _capped(rS, twice)
    if BITS:
        layout: gl.constexpr = rS.type.layout
        rS = _let(rS, _bits(gBits, rS.shape[0], rS.shape[1], layout))
    beside = row + (S - T) - first
    rS = _seen(rS, beside + right, S - 1 - first)
    rS = _keep(rS, beside - left + _rows(rS), "le")
    return _begin(rS, scale_log2, True)


@gluon.jit
def _leave(rAcc, rMax, rSum, tOut, gLse, sOut, i_b, i_h, begin, T, row, most, stride_lse, H, gSinks, stride_sink, SINKS: gl.constexpr, GROUP: gl.constexpr,
           TURNS: gl.constexpr):  # fmt: skip
    """The output and lse. Without a key they are 0 and -inf, or the sink; past the longest sequence that there was said to be, NaN. TURNS: as `_finish`'s."""
    layout: gl.constexpr = rAcc.type.layout
    total = gl.convert_layout(gl.sum(rSum, 1), gl.SliceLayout(1, layout))
    peak = gl.convert_layout(gl.max(rMax, 1), gl.SliceLayout(1, layout))
    i_m = row + gl.arange(0, rAcc.shape[0], gl.SliceLayout(1, layout))
    if SINKS:
        sink = gl.load(gSinks + i_h * stride_sink).to(gl.float32) * 1.4426950408889634
        larger = gl.maximum(peak, sink)
        base = gl.where(larger == -float("inf"), 0.0, larger)
        factor = gl.exp2(peak - base)
        total = total * factor + gl.exp2(sink - base)
        rAcc = rAcc * factor[:, None]
        peak = base
    total = gl.where(i_m < most, total, float("nan"))
    rAcc = rAcc * (1.0 / gl.where(total == 0.0, 1.0, total))[:, None]
    if TURNS:
        _wait(OUT_FREE + 8 * GROUP, 256)
    else:
        tma.store_wait(0)  # the tile before has left sOut
    _group_barrier()
    sOut.store(rAcc.to(tOut.dtype))
    fence_async_shared()
    _store_tile(tOut, _place(tOut, i_b, i_h, begin, T, row), _box(sOut, tOut))
    at = gLse + ((i_b * H + i_h).to(gl.int64) * stride_lse + begin)
    gl.store(at + i_m, (peak + gl.log2(total)) * 0.6931471805599453, mask=i_m < T)
    if TURNS:
        tma.store_wait(0)
        _arrive(OUT_FREE + 8 * (1 - GROUP), 256)


@gluon.jit
def _consume(tOut, gLse, gTiles, sQ, sOut, sK, sV, sTold, q_full, k_full, v_full, scale_log2, twice, left, right, H, most, stride_lse,
             gBits, gSpans, masks_b, masks_h, gSinks, stride_sink, GROUPS: gl.constexpr, SLOTS: gl.constexpr, STAGES: gl.constexpr, Q_REGISTERS: gl.constexpr,
             BITS: gl.constexpr, CAPS: gl.constexpr, SINKS: gl.constexpr, GROUP: gl.constexpr):  # fmt: skip
    BLOCK_M: gl.constexpr = sQ.shape[1]
    BLOCK_N: gl.constexpr = sK.shape[1]
    D: gl.constexpr = sV.shape[2]
    ALL: gl.constexpr = GROUPS * BLOCK_M
    THREADS: gl.constexpr = GROUPS * 128 + 32
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O_LAYOUT, k_width=2)
    Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=S_LAYOUT, k_width=2)
    SEAM: gl.constexpr = SLOTS == 2
    if GROUP == GROUPS - 1:
        _arrive(TURN + 0, 256)
        if not SEAM:
            _arrive(OUT_FREE + 0, 256)
    mbarrier.wait(q_full.index(0), 0)
    i_tile = _told(sTold.index(0))
    row, T, S, begin, _, i_b, i_h = _tile(gTiles, i_tile)
    i_mask = i_b * masks_b + i_h * masks_h
    low, n = _walk(row, T, S, left, right, gSpans, i_mask, ALL, BLOCK_N, BITS)
    gMine = _bits_of(gBits, i_mask, row + GROUP * BLOCK_M, low, T, S, ALL, BITS)
    k = 0
    k_phase = 0
    v = 0
    v_phase = 0
    if SEAM:  # the first tile has nothing to overlap with
        if i_tile >= 0:
            mbarrier.wait(k_full.index(0), 0)
        q = _queries(sQ, GROUP, Q_LAYOUT, Q_REGISTERS)
        _wait(TURN + GROUP, 256)
        rS = _scores(q, sQ, GROUP, sK, 0, 1, S_LAYOUT)
        _arrive(TURN + (GROUP + 1) % GROUPS, 256)
        rS = warpgroup_mma_wait(0, deps=(rS,))
        if i_tile >= 0:
            _arrive(K_EMPTY + 0, THREADS)
        rNew, rMax, rSum = _open(rS, row + GROUP * BLOCK_M, low, T, S, left, right, gMine, scale_log2, twice, BITS, CAPS)
        rP = _pairs(rNew, sK)
        k, k_phase = _next(0, 0, STAGES)
    i = 0
    while i_tile >= 0:
        slot = i % SLOTS
        at = slot * GROUPS + GROUP
        if SEAM:
            if not Q_REGISTERS:
                q = _queries(sQ, at, Q_LAYOUT, False)
        else:
            q = _queries(sQ, at, Q_LAYOUT, Q_REGISTERS)
            mbarrier.wait(k_full.index(k), k_phase)
            _wait(TURN + GROUP, 256)
            rS = _scores(q, sQ, at, sK, k, 1, S_LAYOUT)
            _arrive(TURN + (GROUP + 1) % GROUPS, 256)
            rS = warpgroup_mma_wait(0, deps=(rS,))
            _arrive(K_EMPTY + k, THREADS)
            rNew, rMax, rSum = _open(rS, row + GROUP * BLOCK_M, low, T, S, left, right, gMine, scale_log2, twice, BITS, CAPS)
            rP = _pairs(rNew, sK)
            v = k
            v_phase = k_phase
            k, k_phase = _next(k, k_phase, STAGES)
        rAcc = gl.zeros([BLOCK_M, D], gl.float32, O_LAYOUT)
        for j in range(1, n):
            first = low + j * BLOCK_N
            k, k_phase, v, v_phase, rP, rAcc, rMax, rSum = _step(
                q, sQ, at, sK, sV, k_full, v_full, k, k_phase, v, v_phase, rP, rAcc, rMax, rSum, scale_log2, twice,
                row + GROUP * BLOCK_M + S - T + right - first, S - 1 - first, gMine + j * 256, GROUP, GROUPS, 1, STAGES, True, BITS,
                CAPS, S_LAYOUT, P_LAYOUT)  # fmt: skip
        i += 1
        row_done, T_done, begin_done, i_b_done, i_h_done = row, T, begin, i_b, i_h
        if SEAM:
            # The next tile's first QK, this one's last PV, the next softmax under it, then this one's output. After the last tile that QK
            # runs on what lies in shared memory and is dropped.
            mbarrier.wait(q_full.index(slot ^ 1), (i >> 1) & 1)
            i_tile = _told(sTold.index(slot ^ 1))
            if i_tile >= 0:
                mbarrier.wait(k_full.index(k), k_phase)
            row, T, S, begin, _, i_b, i_h = _tile(gTiles, i_tile)
            i_mask = i_b * masks_b + i_h * masks_h
            low, n = _walk(row, T, S, left, right, gSpans, i_mask, ALL, BLOCK_N, BITS)
            gMine = _bits_of(gBits, i_mask, row + GROUP * BLOCK_M, low, T, S, ALL, BITS)
            after = (slot ^ 1) * GROUPS + GROUP
            q = _queries(sQ, after, Q_LAYOUT, Q_REGISTERS)
            _wait(TURN + GROUP, 256)
            rS = _scores(q, sQ, after, sK, k, 1, S_LAYOUT)
            mbarrier.wait(v_full.index(v), v_phase)
            rP = _weights(rP, sK, P_LAYOUT)
            rAcc = warpgroup_mma(rP, sV.index(v), rAcc, is_async=True)
            _arrive(TURN + (GROUP + 1) % GROUPS, 256)
            rS = warpgroup_mma_wait(1, deps=(rS,))
            _arrive(Q_EMPTY + slot, THREADS)
            if i_tile >= 0:
                _arrive(K_EMPTY + k, THREADS)
            rNew, max_after, sum_after = _open(rS, row + GROUP * BLOCK_M, low, T, S, left, right, gMine, scale_log2, twice, BITS, CAPS)
            sum_after = _hold(sum_after)
            rAcc, rP = warpgroup_mma_wait(0, deps=(rAcc, rP))
            _arrive(V_EMPTY + v, THREADS)
            rP = _pairs(rNew, sK)
            _leave(rAcc, rMax, rSum, tOut, gLse, sOut.index(GROUP), i_b_done, i_h_done, begin_done, T_done, row_done + GROUP * BLOCK_M, most,
                   stride_lse, H, gSinks, stride_sink, SINKS, GROUP, False)  # fmt: skip
            rMax = max_after
            rSum = sum_after
            v = k
            v_phase = k_phase
            k, k_phase = _next(k, k_phase, STAGES)
        else:  # the next tile's queries arrive while the last PV runs and the output leaves
            _arrive(Q_EMPTY, THREADS)
            mbarrier.wait(v_full.index(v), v_phase)
            _wait(TURN + GROUP, 256)
            rP = _weights(rP, sK, P_LAYOUT)
            rAcc = warpgroup_mma(rP, sV.index(v), rAcc, is_async=True)
            _arrive(TURN + (GROUP + 1) % GROUPS, 256)
            rAcc, rP = warpgroup_mma_wait(0, deps=(rAcc, rP))
            _arrive(V_EMPTY + v, THREADS)
            _leave(rAcc, rMax, rSum, tOut, gLse, sOut.index(0), i_b_done, i_h_done, begin_done, T_done, row_done + GROUP * BLOCK_M, most,
                   stride_lse, H, gSinks, stride_sink, SINKS, GROUP, True)  # fmt: skip
            mbarrier.wait(q_full.index(0), i & 1)
            i_tile = _told(sTold.index(0))
            row, T, S, begin, _, i_b, i_h = _tile(gTiles, i_tile)
            i_mask = i_b * masks_b + i_h * masks_h
            low, n = _walk(row, T, S, left, right, gSpans, i_mask, ALL, BLOCK_N, BITS)
            gMine = _bits_of(gBits, i_mask, row + GROUP * BLOCK_M, low, T, S, ALL, BITS)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("left", "right", "H", "most", "stride_lse", "masks_b", "masks_h", "stride_sink"))
def forward(gLse, gTiles, tQ, tK, tV, tOut, scale_log2, twice, left, right, H, most, stride_lse, gBits, gSpans, masks_b, masks_h, gSinks, stride_sink,
             GROUPS: gl.constexpr, SLOTS: gl.constexpr, STAGES: gl.constexpr, SHARED_BY: gl.constexpr, Q_REGISTERS: gl.constexpr, BITS: gl.constexpr,
             CAPS: gl.constexpr, SINKS: gl.constexpr, REGISTERS: gl.constexpr):  # fmt: skip
    AXES: gl.constexpr = len(tQ.block_type.shape)
    BLOCK_M: gl.constexpr = tQ.block_type.shape[AXES - 2]
    BLOCK_N: gl.constexpr = tK.block_type.shape[AXES - 2]
    D: gl.constexpr = tQ.block_type.shape[AXES - 1]
    TILE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    sQ = gl.allocate_shared_memory(tQ.dtype, [SLOTS * GROUPS, BLOCK_M, D], TILE)
    sOut = gl.allocate_shared_memory(tQ.dtype, [GROUPS if SLOTS == 2 else 1, BLOCK_M, D], TILE)
    sK = gl.allocate_shared_memory(tQ.dtype, [STAGES, BLOCK_N, D], TILE)
    sV = gl.allocate_shared_memory(tQ.dtype, [STAGES, BLOCK_N, D], TILE)
    sTold = gl.allocate_shared_memory(gl.int32, [SLOTS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(q_full.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
    fence_async_shared()
    if GROUPS == 2:
        gl.warp_specialize([
            (_consume, (tOut, gLse, gTiles, sQ, sOut, sK, sV, sTold, q_full, k_full, v_full, scale_log2, twice, left, right, H, most, stride_lse,
                        gBits, gSpans, masks_b, masks_h, gSinks, stride_sink, GROUPS, SLOTS, STAGES, Q_REGISTERS, BITS, CAPS, SINKS, 0)),
            (_consume, (tOut, gLse, gTiles, sQ, sOut, sK, sV, sTold, q_full, k_full, v_full, scale_log2, twice, left, right, H, most, stride_lse,
                        gBits, gSpans, masks_b, masks_h, gSinks, stride_sink, GROUPS, SLOTS, STAGES, Q_REGISTERS, BITS, CAPS, SINKS, 1)),
            (_produce, (tQ, tK, tV, gTiles, sQ, sK, sV, sTold, q_full, k_full, v_full, left, right, gSpans, masks_b, masks_h,
                        GROUPS, SLOTS, STAGES, SHARED_BY, BITS)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (_consume, (tOut, gLse, gTiles, sQ, sOut, sK, sV, sTold, q_full, k_full, v_full, scale_log2, twice, left, right, H, most, stride_lse,
                        gBits, gSpans, masks_b, masks_h, gSinks, stride_sink, GROUPS, SLOTS, STAGES, Q_REGISTERS, BITS, CAPS, SINKS, 0)),
            (_consume, (tOut, gLse, gTiles, sQ, sOut, sK, sV, sTold, q_full, k_full, v_full, scale_log2, twice, left, right, H, most, stride_lse,
                        gBits, gSpans, masks_b, masks_h, gSinks, stride_sink, GROUPS, SLOTS, STAGES, Q_REGISTERS, BITS, CAPS, SINKS, 1)),
            (_consume, (tOut, gLse, gTiles, sQ, sOut, sK, sV, sTold, q_full, k_full, v_full, scale_log2, twice, left, right, H, most, stride_lse,
                        gBits, gSpans, masks_b, masks_h, gSinks, stride_sink, GROUPS, SLOTS, STAGES, Q_REGISTERS, BITS, CAPS, SINKS, 2)),
            (_produce, (tQ, tK, tV, gTiles, sQ, sK, sV, sTold, q_full, k_full, v_full, left, right, gSpans, masks_b, masks_h,
                        GROUPS, SLOTS, STAGES, SHARED_BY, BITS)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 32])  # fmt: skip
