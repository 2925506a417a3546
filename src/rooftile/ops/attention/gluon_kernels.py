"""FlashAttention forward for Hopper in Gluon: TMA, mbarriers, warp specialisation, wgmma. Plain Python on the Triton torch ships.

Floor: 4 D operations a pair over the matmul ceiling; at D = 64 the exponentials (one a pair, 16 a cycle and multiprocessor) take about
as long as the products, so both must run at once. What makes it fast:

* one producer warp brings tiles in by TMA; two or three groups of 4 warps each own 64 query rows and their accumulator in registers;
* a step queues QK of this key tile and PV of the last, and takes the softmax of this one while PV runs (ping-pong: one group's softmax
  under the other's products);
* programs are persistent and walk a table made on the host: longest causal tiles first, in groups of heads whose keys stay in the L2.
  There is no gap between tiles: the next tile's first QK goes out with this tile's last PV, and the output leaves from memory of its own;
* keys are visited from the diagonal down, so only a tile's first steps carry a mask;
* "empty" signals are named barriers, which an arriving warp does not wait at; an mbarrier's arrive would cost a barrier of 128 threads;
* the running maximum moves only when it would grow by more than 2^8: one vote a warp, and shuffles, rescaling exponentials and the
  accumulator's product sit behind a branch that is almost never taken. Exact, since sum and accumulator share their maximum;
* statistics are [rows, 4], one for each lane of a quad, so that a sum crosses lanes once a tile and not once a step.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

# The one place that knows Triton's releases: 3.6 calls these otherwise.
_load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
_group_barrier = getattr(gl, "barrier", None) or gl.thread_barrier

# Named barriers of the block; Triton uses 0 to 4.
TURN = gl.constexpr(5)  # whose turn it is to queue products, one a group
K_EMPTY = gl.constexpr(8)  # one a stage
V_EMPTY = gl.constexpr(11)
Q_EMPTY = gl.constexpr(14)  # one a slot
OUT_FREE = gl.constexpr(7)  # and 15: where two groups with one slot take turns at the output's memory
LAZY = 8  # the maximum moves in steps of 2^8 at least: a term is at most 256, which a 16-bit p holds


@gluon.constexpr_function
def _bar(kind, threads):
    return f"bar.{kind} $1, {threads}; mov.u32 $0, $1;"


@gluon.jit
def _wait(i, THREADS: gl.constexpr):
    gl.inline_asm_elementwise(_bar("sync", THREADS), "=r,r", [gl.to_tensor(i)], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _arrive(i, THREADS: gl.constexpr):
    gl.inline_asm_elementwise(_bar("arrive", THREADS), "=r,r", [gl.to_tensor(i)], dtype=gl.int32, is_pure=False, pack=1)


@gluon.constexpr_function
def _rescale_code(n):
    """n products by one of two factors (rows r and r + 8 of a lane), skipped where every lane's factors are 1."""
    move = " ".join(f"mov.f32 ${i}, ${n + i};" for i in range(n))
    multiply = " ".join(f"mul.f32 ${i}, ${n + i}, ${2 * n + i};" for i in range(n))
    return (
        f"{{ .reg .pred p, q; setp.neu.f32 p, ${2 * n}, 0f3F800000; setp.neu.f32 q, ${2 * n + 2}, 0f3F800000; or.pred p, p, q; "
        f"vote.sync.any.pred p, p, 0xffffffff; {move} @!p bra DONE; {multiply} DONE: }}"
    )


@gluon.constexpr_function
def _rescale_operands(n):
    return ",".join(["=f"] * n + ["f"] * (2 * n))


@gluon.constexpr_function
def _maximum_code():
    """Results: maximum (2 rows) and factor (2); operands: largest score of the lane (2), maximum so far (2), scale (2). Where no lane of the
    warp needs to move its maximum, one vote and no shuffle. 0f41000000 is LAZY as a float."""
    code = (
        "{ .reg .pred p, q; .reg .f32 c0, c1, d0, d1, t; mul.f32 c0, $4, $8; mul.f32 c1, $5, $9; "
        "sub.f32 d0, c0, $6; sub.f32 d1, c1, $7; setp.gt.f32 p, d0, 0f41000000; setp.gt.f32 q, d1, 0f41000000; or.pred p, p, q; "
        "vote.sync.any.pred p, p, 0xffffffff; mov.f32 $0, $6; mov.f32 $1, $7; mov.f32 $2, 0f3F800000; mov.f32 $3, 0f3F800000; "
        "@!p bra DONE; "
    )
    for i in (0, 1):
        for distance in (1, 2):
            code += f"shfl.sync.bfly.b32 t, c{i}, {distance}, 0x1f, 0xffffffff; max.f32 c{i}, c{i}, t; "
        code += (
            f"sub.f32 d{i}, c{i}, ${6 + i}; setp.gt.f32 p, d{i}, 0f41000000; sub.f32 t, ${6 + i}, c{i}; "
            f"@p mov.f32 ${i}, c{i}; @p ex2.approx.ftz.f32 ${2 + i}, t; "
        )
    return code + "DONE: }"


@gluon.jit
def _entry(gTable, i, stride, GROUPS: gl.constexpr, ROWS: gl.constexpr):
    """This program's i-th piece of work: (first query row, which of the B H heads)."""
    entry = gl.load(gTable + gl.num_programs(0) + gl.program_id(0) * stride + i)
    return (entry & 0xFFFFFFFF).to(gl.int32) * (GROUPS * ROWS), (entry >> 32).to(gl.int32)


@gluon.jit
def _box(sTile, tensor):
    """A [rows, D] tile as the [1, 1, rows, D] box of a [B, H, T, D] tensor, which clips at T."""
    return sTile._reinterpret(tensor.dtype, tensor.block_type.shape, tensor.layout)


@gluon.jit
def _steps(row, T, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """Key tiles that queries from `row` on look at."""
    n = gl.cdiv(T, BLOCK_N)
    if CAUSAL:
        n = gl.minimum(n, gl.cdiv(row + ROWS, BLOCK_N))
    return n


@gluon.jit
def _produce(tQ, tK, tV, gTable, sQ, sK, sV, q_full, k_full, v_full, H, T, stride,
             GROUPS: gl.constexpr, BLOCK_N: gl.constexpr, PIECES: gl.constexpr, SLOTS: gl.constexpr, STAGES: gl.constexpr,
             CAUSAL: gl.constexpr, SHARED_BY: gl.constexpr):  # fmt: skip
    BLOCK_M: gl.constexpr = tQ.block_type.shape[2]
    WIDTH: gl.constexpr = tQ.block_type.shape[3]
    THREADS: gl.constexpr = GROUPS * 128 + 32
    stage = 0
    seen = 0
    for i in range(gl.load(gTable + gl.program_id(0)).to(gl.int32)):
        row, i_bh = _entry(gTable, i, stride, GROUPS, BLOCK_M)
        i_b, i_h = i_bh // H, i_bh % H
        slot = i % SLOTS
        if i >= SLOTS:
            _wait(Q_EMPTY + slot, THREADS)
        mbarrier.expect(q_full.index(slot), tQ.block_type.nbytes * GROUPS * PIECES)
        for w in gl.static_range(GROUPS * PIECES):
            _load_tile(tQ, [i_b, i_h, row + w // PIECES * BLOCK_M, w % PIECES * WIDTH], q_full.index(slot),
                       _box(sQ.index(slot * (GROUPS * PIECES) + w), tQ))  # fmt: skip
        n = _steps(row, T, GROUPS * BLOCK_M, BLOCK_N, CAUSAL)
        for j in range(n):
            first = (n - 1 - j) * BLOCK_N
            if seen >= STAGES:
                _wait(K_EMPTY + stage, THREADS)
            mbarrier.expect(k_full.index(stage), tK.block_type.nbytes * PIECES)
            for p in gl.static_range(PIECES):
                _load_tile(tK, [i_b, i_h // SHARED_BY, first, p * WIDTH], k_full.index(stage), _box(sK.index(stage * PIECES + p), tK))
            if seen >= STAGES:
                _wait(V_EMPTY + stage, THREADS)
            mbarrier.expect(v_full.index(stage), tV.block_type.nbytes)
            _load_tile(tV, [i_b, i_h // SHARED_BY, first, 0], v_full.index(stage), _box(sV.index(stage), tV))
            seen += 1
            stage = gl.where(stage == STAGES - 1, 0, stage + 1)


@gluon.jit
def _quads(x):
    """[M, N] -> [M, N/8, 4, 2]: in wgmma's layout axes 1 and 3 lie in one lane, axis 2 is the lane of the quad."""
    return x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def _per_row(statistic, like):
    """[M, 4] beside the [M, N/8, 4, 2] tensor `like`; no data moves."""
    layout: gl.constexpr = like.type.layout
    statistic = gl.convert_layout(statistic, gl.SliceLayout(1, gl.SliceLayout(3, layout)))
    return gl.expand_dims(gl.expand_dims(statistic, 1), 3)


@gluon.constexpr_function
def _keep_code(comparison):
    return f"{{ .reg .pred p; setp.{comparison}.s32 p, $2, $3; selp.f32 $0, $1, 0fFF800000, p; }}"


@gluon.jit
def _keep(rS, limit, COMPARISON: gl.constexpr):
    """Scores of the tile's keys that a row's limit [M] is ge or le than; the others are -inf. A lane's own keys are constants beside its limit: two
    instructions a score, where a `where` would also make and keep the conditions of all."""
    rS4 = _quads(rS)
    layout: gl.constexpr = rS4.type.layout
    keys: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, layout))
    limit = gl.expand_dims(limit, 1) - 2 * gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, limit.type.layout.parent)), 0)
    key = 8 * gl.arange(0, rS4.shape[1], gl.SliceLayout(1, keys))[:, None] + gl.arange(0, 2, gl.SliceLayout(0, keys))[None, :]
    limit, rS4 = gl.broadcast(_per_row(limit, rS4), rS4)
    key, rS4 = gl.broadcast(gl.expand_dims(gl.expand_dims(key, 0), 2), rS4)
    rS4 = gl.inline_asm_elementwise(_keep_code(COMPARISON), "=f,f,r,r", [rS4, limit, key], dtype=gl.float32, is_pure=True, pack=1)
    return gl.convert_layout(rS4.reshape(rS.shape), rS.type.layout, assert_trivial=True)


@gluon.jit
def _rows(rS):
    """0 to M - 1, for `_keep`."""
    return gl.arange(0, rS.shape[0], gl.SliceLayout(1, gl.SliceLayout(1, gl.SliceLayout(3, _quads(rS).type.layout))))


@gluon.jit
def _seen(rS, last, end):
    """Of the tile's keys the first row sees those up to `last`, each row one more than the row before it, and all those up to `end` at most."""
    return _keep(rS, gl.minimum(last + _rows(rS), end), "ge")


@gluon.constexpr_function
def _tanh_code():
    """1 - 2 / (1 + 2^x), which is tanh where x is 2 log2(e) times its argument, to some 2^-22 absolutely."""
    return (
        "{ .reg .f32 t; ex2.approx.ftz.f32 t, $1; add.f32 t, t, 0f3F800000; rcp.approx.ftz.f32 t, t; "
        "fma.rn.f32 $0, t, 0fC0000000, 0f3F800000; }"
    )


@gluon.jit
def _capped(rS, twice):
    """Products to tanh of them; `twice` is what makes 2 log2(e) arguments of them."""
    return gl.inline_asm_elementwise(_tanh_code(), "=f,f", [rS * twice], dtype=gl.float32, is_pure=True, pack=1)


@gluon.constexpr_function
def _let_code():
    return "{ .reg .pred p; .reg .b32 t; and.b32 t, $2, $3; setp.ne.s32 p, t, 0; selp.f32 $0, $1, 0fFF800000, p; }"


@gluon.jit
def _bits(gBits, M: gl.constexpr, N: gl.constexpr, LAYOUT: gl.constexpr):
    """Of a mask's bits for 64 queries by 128 keys, which lie as lanes hold scores, a lane's two words: [M, 4], for its rows and its lane of the quad."""
    layout: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, _quads(gl.zeros([M, N], gl.float32, LAYOUT)).type.layout))
    i = gl.arange(0, M, gl.SliceLayout(1, layout))[:, None]
    at = (i // 16 * 8 + i % 8) * 8 + gl.arange(0, 4, gl.SliceLayout(0, layout))[None, :] * 2 + i // 8 % 2
    return gl.load(gBits + at)


@gluon.jit
def _let(rS, rBits):
    """Scores of keys that the mask has a bit for; the others are -inf."""
    rS4 = _quads(rS)
    layout: gl.constexpr = rS4.type.layout
    keys: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, layout))
    of_key = 2 * gl.arange(0, rS4.shape[1], gl.SliceLayout(1, keys))[:, None] + gl.arange(0, 2, gl.SliceLayout(0, keys))[None, :]
    rBits, rS4 = gl.broadcast(_per_row(rBits, rS4), rS4)
    bit, rS4 = gl.broadcast(gl.expand_dims(gl.expand_dims(1 << of_key, 0), 2), rS4)
    rS4 = gl.inline_asm_elementwise(_let_code(), "=f,f,r,r", [rS4, rBits, bit], dtype=gl.float32, is_pure=True, pack=1)
    return gl.convert_layout(rS4.reshape(rS.shape), rS.type.layout, assert_trivial=True)


@gluon.jit
def _softmax(rS, rMax, rSum, scale_log2, MASKED: gl.constexpr):
    """(p, the accumulator's factor, maximum, sum)."""
    rS4 = _quads(rS)
    largest = gl.max(gl.max(rS4, 3), 1)
    rMax, factor = gl.inline_asm_elementwise(_maximum_code(), "=f,=f,=f,=f,f,f,f,f,f,f", [largest, rMax, gl.zeros_like(largest) + scale_log2],
                                             dtype=(gl.float32, gl.float32), is_pure=False, pack=2)  # fmt: skip
    base = rMax
    if MASKED:  # a row that has seen no key yet
        base = gl.where(rMax == -float("inf"), 0.0, rMax)
    rP = gl.exp2(rS4 * scale_log2 - _per_row(base, rS4))
    rSum = rSum * factor + gl.sum(gl.sum(rP, 3), 1)
    return rP.reshape(rS.shape), factor, rMax, rSum


@gluon.constexpr_function
def _pair_code(dtype):
    return f"cvt.rn.{'bf16' if dtype == gl.bfloat16 else 'f16'}x2.f32 $0, $2, $1;"


@gluon.jit
def _pairs(rP, like):
    """[M, N] in float32 -> [M, N/2] of two 16-bit numbers each. So they go from step to step: as numbers of 16 bits, which a loop carries one by
    one, each pair would be turned around at its end and again at its beginning."""
    low, high = rP.reshape([rP.shape[0], rP.shape[1] // 2, 2]).split()
    return gl.inline_asm_elementwise(_pair_code(like.dtype), "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _weights(rP, like, LAYOUT: gl.constexpr):
    """What `_pairs` made, as PV reads it."""
    low, high = gl.inline_asm_elementwise("mov.b32 {$0, $1}, $2;", "=h,=h,r", [rP], dtype=(like.dtype, like.dtype), is_pure=True, pack=1)
    return gl.convert_layout(gl.join(low, high).reshape([rP.shape[0], rP.shape[1] * 2]), LAYOUT, assert_trivial=True)


@gluon.jit
def _hold(rSum):
    """Keeps ptxas from hoisting the wait for PV above the exponentials that are to run under it."""
    return gl.inline_asm_elementwise("{ .reg .b32 m; or.b32 m, $1, 0xffffffff; bar.warp.sync m; mov.b32 $0, $1; }", "=f,f", [rSum],
                                     dtype=gl.float32, is_pure=False, pack=1)  # fmt: skip


@gluon.jit
def _rescale(rAcc, factor):
    E: gl.constexpr = rAcc.shape[0] * rAcc.shape[1] // 128
    rA = _quads(rAcc)
    rF, rA = gl.broadcast(_per_row(factor, rA), rA)
    rA = gl.inline_asm_elementwise(_rescale_code(E), _rescale_operands(E), [rA, rF], dtype=gl.float32, is_pure=False, pack=E)
    return gl.convert_layout(rA.reshape(rAcc.shape), rAcc.type.layout)


@gluon.jit
def _next(stage, phase, STAGES: gl.constexpr):
    stage = gl.where(stage == STAGES - 1, 0, stage + 1)
    return stage, gl.where(stage == 0, phase ^ 1, phase)


@gluon.jit
def _queries(sQ, at, LAYOUT: gl.constexpr, IN_REGISTERS: gl.constexpr):
    """A group's first piece of queries, as products are to read it."""
    if IN_REGISTERS:
        q = sQ.index(at).load(LAYOUT)
    else:
        q = sQ.index(at)
    return q


@gluon.jit
def _scores(q, sQ, at, sK, k, PIECES: gl.constexpr, LAYOUT: gl.constexpr):
    """Queues QK, a piece of the head's dimension after the other; `at`: where in sQ the group's first piece lies, which `q` is."""
    BLOCK_M: gl.constexpr = sQ.shape[1]
    BLOCK_N: gl.constexpr = sK.shape[1]
    rS = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, LAYOUT)
    rS = warpgroup_mma(q, sK.index(k * PIECES).permute((1, 0)), rS, use_acc=False, is_async=True)
    for p in gl.static_range(1, PIECES):
        rS = warpgroup_mma(sQ.index(at + p), sK.index(k * PIECES + p).permute((1, 0)), rS, is_async=True)
    return rS


@gluon.jit
def _step(q, sQ, at, sK, sV, k_full, v_full, k, k_phase, v, v_phase, rP, rAcc, rMax, rSum, scale_log2, twice, last, end, gBits,
          GROUP: gl.constexpr, GROUPS: gl.constexpr, PIECES: gl.constexpr, STAGES: gl.constexpr, CUT: gl.constexpr, BITS: gl.constexpr,
          CAPS: gl.constexpr, S_LAYOUT: gl.constexpr, P_LAYOUT: gl.constexpr):  # fmt: skip
    """QK of this tile and PV of the last go out together; the softmax of this one runs under PV. CUT: which keys are `_seen`, all or not. One loop for
    both: of two, one after the other, ptxas made the second's descriptors on the way to the first alone, which may be passed by. BITS: of a mask, on
    their way while QK runs. CAPS: scores are `_capped`."""
    THREADS: gl.constexpr = GROUPS * 128 + 32
    mbarrier.wait(k_full.index(k), k_phase)
    _wait(TURN + GROUP, 256)
    rS = _scores(q, sQ, at, sK, k, PIECES, S_LAYOUT)
    if BITS:
        rBits = _bits(gBits, sQ.shape[1], sK.shape[1], S_LAYOUT)
    rP = _weights(rP, sK, P_LAYOUT)
    mbarrier.wait(v_full.index(v), v_phase)
    rAcc = warpgroup_mma(rP, sV.index(v), rAcc, is_async=True)
    _arrive(TURN + (GROUP + 1) % GROUPS, 256)
    rS = warpgroup_mma_wait(1, deps=(rS,))
    _arrive(K_EMPTY + k, THREADS)
    if CAPS:
        rS = _capped(rS, twice)
    if BITS:
        rS = _let(rS, rBits)
    if CUT:
        if gl.minimum(last, end) < sK.shape[1] - 1:
            rS = _seen(rS, last, end)
    rNew, factor, rMax, rSum = _softmax(rS, rMax, rSum, scale_log2, CUT)
    rSum = _hold(rSum)
    rAcc, rP = warpgroup_mma_wait(0, deps=(rAcc, rP))
    _arrive(V_EMPTY + v, THREADS)
    rAcc = _rescale(rAcc, factor)
    after, phase = _next(k, k_phase, STAGES)
    return after, phase, k, k_phase, _pairs(rNew, sK), rAcc, rMax, rSum


@gluon.jit
def _begin(rS, scale_log2, MASKED: gl.constexpr):
    """`_softmax` where nothing came before: (p, maximum, sum)."""
    no_sum = gl.sum(gl.sum(_quads(gl.zeros_like(rS)), 3), 1)
    rNew, _factor, rMax, rSum = _softmax(rS, no_sum - float("inf"), no_sum, scale_log2, MASKED)
    return rNew, rMax, rSum


@gluon.jit
def _first(rS, row, first, T, scale_log2, CAUSAL: gl.constexpr, TAIL: gl.constexpr):
    """The softmax of a tile's first step, whose queries have seen nothing yet: (p, maximum, sum)."""
    if CAUSAL or TAIL:  # past the last key TMA filled the tile with zeros
        rS = _seen(rS, row - first if CAUSAL else rS.shape[1], T - 1 - first)
    return _begin(rS, scale_log2, CAUSAL or TAIL)


@gluon.jit
def _finish(rAcc, rMax, rSum, tOut, gLse, sOut, i_bh, H, row, T, GROUP: gl.constexpr, TURNS: gl.constexpr):
    """The output and lse. TURNS: both groups' outputs leave through the same memory, one after the other."""
    layout: gl.constexpr = rAcc.type.layout
    total = gl.convert_layout(gl.sum(rSum, 1), gl.SliceLayout(1, layout))
    peak = gl.convert_layout(gl.max(rMax, 1), gl.SliceLayout(1, layout))
    rAcc = rAcc * (1.0 / total)[:, None]
    if TURNS:
        _wait(OUT_FREE + 8 * GROUP, 256)
    else:
        tma.store_wait(0)  # the tile before has left sOut
    _group_barrier()
    sOut.store(rAcc.to(tOut.dtype))
    fence_async_shared()
    _store_tile(tOut, [i_bh // H, i_bh % H, row, 0], _box(sOut, tOut))
    i_m = row + gl.arange(0, rAcc.shape[0], gl.SliceLayout(1, layout))
    gl.store(gLse + i_bh.to(gl.int64) * T + i_m, (peak + gl.log2(total)) * 0.6931471805599453, mask=i_m < T)
    if TURNS:
        tma.store_wait(0)
        _arrive(OUT_FREE + 8 * (1 - GROUP), 256)


@gluon.jit
def _consume(tOut, gLse, gTable, sQ, sOut, sK, sV, q_full, k_full, v_full, scale_log2, H, T, stride, GROUPS: gl.constexpr,
             BLOCK_N: gl.constexpr, PIECES: gl.constexpr, SLOTS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
             TAIL: gl.constexpr, Q_REGISTERS: gl.constexpr, GROUP: gl.constexpr):  # fmt: skip
    BLOCK_M: gl.constexpr = tOut.block_type.shape[2]
    D: gl.constexpr = tOut.block_type.shape[3]
    ALL: gl.constexpr = GROUPS * BLOCK_M
    THREADS: gl.constexpr = GROUPS * 128 + 32
    SEAM: gl.constexpr = SLOTS == 2
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O_LAYOUT, k_width=2)
    Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=S_LAYOUT, k_width=2)
    mine = gl.load(gTable + gl.program_id(0)).to(gl.int32)
    if GROUP == GROUPS - 1:
        _arrive(TURN + 0, 256)
        if not SEAM:
            _arrive(OUT_FREE + 0, 256)
    row, i_bh = _entry(gTable, 0, stride, GROUPS, BLOCK_M)
    n = _steps(row, T, ALL, BLOCK_N, CAUSAL)
    at = GROUP * PIECES
    k = 0
    k_phase = 0
    v = 0
    v_phase = 0
    if SEAM:  # the first tile has nothing to overlap with
        mbarrier.wait(q_full.index(0), 0)
        mbarrier.wait(k_full.index(0), 0)
        _wait(TURN + GROUP, 256)
        q = _queries(sQ, at, Q_LAYOUT, Q_REGISTERS)
        rS = _scores(q, sQ, at, sK, 0, PIECES, S_LAYOUT)
        _arrive(TURN + (GROUP + 1) % GROUPS, 256)
        rS = warpgroup_mma_wait(0, deps=(rS,))
        _arrive(K_EMPTY + 0, THREADS)
        rNew, rMax, rSum = _first(rS, row + GROUP * BLOCK_M, (n - 1) * BLOCK_N, T, scale_log2, CAUSAL, TAIL)
        rP = _pairs(rNew, sK)
        k, k_phase = _next(0, 0, STAGES)
    for i in range(mine):
        slot = i % SLOTS
        at = (slot * GROUPS + GROUP) * PIECES
        if SEAM:
            if not Q_REGISTERS:
                q = _queries(sQ, at, Q_LAYOUT, False)
        else:
            mbarrier.wait(q_full.index(0), i & 1)
            q = _queries(sQ, at, Q_LAYOUT, Q_REGISTERS)
            mbarrier.wait(k_full.index(k), k_phase)
            _wait(TURN + GROUP, 256)
            rS = _scores(q, sQ, at, sK, k, PIECES, S_LAYOUT)
            _arrive(TURN + (GROUP + 1) % GROUPS, 256)
            rS = warpgroup_mma_wait(0, deps=(rS,))
            _arrive(K_EMPTY + k, THREADS)
            rNew, rMax, rSum = _first(rS, row + GROUP * BLOCK_M, (n - 1) * BLOCK_N, T, scale_log2, CAUSAL, TAIL)
            rP = _pairs(rNew, sK)
            v = k
            v_phase = k_phase
            k, k_phase = _next(k, k_phase, STAGES)
        more = i + 1 < mine
        row_after, i_bh_after = _entry(gTable, gl.minimum(i + 1, mine - 1), stride, GROUPS, BLOCK_M)
        rAcc = gl.zeros([BLOCK_M, D], gl.float32, O_LAYOUT)
        for j in range(1, n):
            k, k_phase, v, v_phase, rP, rAcc, rMax, rSum = _step(
                q, sQ, at, sK, sV, k_full, v_full, k, k_phase, v, v_phase, rP, rAcc, rMax, rSum, scale_log2, 0.0,
                row + GROUP * BLOCK_M - (n - 1 - j) * BLOCK_N, BLOCK_N, 0, GROUP, GROUPS, PIECES, STAGES, CAUSAL and ALL != BLOCK_N, False,
                False, S_LAYOUT, P_LAYOUT)  # fmt: skip
        row_done, i_bh_done = row, i_bh
        row, i_bh = row_after, i_bh_after
        n = _steps(row, T, ALL, BLOCK_N, CAUSAL)
        if SEAM:
            # The next tile's first QK, this one's last PV, the next softmax under it, then this one's output. After the last tile that QK
            # runs on what lies in shared memory and is dropped.
            if more:
                mbarrier.wait(q_full.index(slot ^ 1), ((i + 1) >> 1) & 1)
                mbarrier.wait(k_full.index(k), k_phase)
            after = ((slot ^ 1) * GROUPS + GROUP) * PIECES
            q = _queries(sQ, after, Q_LAYOUT, Q_REGISTERS)
            _wait(TURN + GROUP, 256)
            rS = _scores(q, sQ, after, sK, k, PIECES, S_LAYOUT)
            mbarrier.wait(v_full.index(v), v_phase)
            rP = _weights(rP, sK, P_LAYOUT)
            rAcc = warpgroup_mma(rP, sV.index(v), rAcc, is_async=True)
            _arrive(TURN + (GROUP + 1) % GROUPS, 256)
            rS = warpgroup_mma_wait(1, deps=(rS,))
            _arrive(Q_EMPTY + slot, THREADS)
            if more:
                _arrive(K_EMPTY + k, THREADS)
            rNew, max_after, sum_after = _first(rS, row + GROUP * BLOCK_M, (n - 1) * BLOCK_N, T, scale_log2, CAUSAL, TAIL)
            sum_after = _hold(sum_after)
            rAcc, rP = warpgroup_mma_wait(0, deps=(rAcc, rP))
            _arrive(V_EMPTY + v, THREADS)
            rP = _pairs(rNew, sK)
            _finish(rAcc, rMax, rSum, tOut, gLse, sOut.index(GROUP), i_bh_done, H, row_done + GROUP * BLOCK_M, T, GROUP, False)
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
            _finish(rAcc, rMax, rSum, tOut, gLse, sOut.index(0), i_bh_done, H, row_done + GROUP * BLOCK_M, T, GROUP, True)
    tma.store_wait(0)


@gluon.jit
def forward(gLse, gTable, tQ, tK, tV, tOut, scale_log2, H, T, stride, GROUPS: gl.constexpr, BLOCK_N: gl.constexpr, PIECES: gl.constexpr,
             SLOTS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, TAIL: gl.constexpr, SHARED_BY: gl.constexpr,
             Q_REGISTERS: gl.constexpr, REGISTERS: gl.constexpr):  # fmt: skip
    BLOCK_M: gl.constexpr = tQ.block_type.shape[2]
    WIDTH: gl.constexpr = tQ.block_type.shape[3]
    D: gl.constexpr = tOut.block_type.shape[3]
    TILE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    sQ = gl.allocate_shared_memory(tQ.dtype, [SLOTS * GROUPS * PIECES, BLOCK_M, WIDTH], TILE)
    sOut = gl.allocate_shared_memory(tQ.dtype, [GROUPS if SLOTS == 2 else 1, BLOCK_M, D], TILE)
    sK = gl.allocate_shared_memory(tQ.dtype, [STAGES * PIECES, BLOCK_N, WIDTH], TILE)
    sV = gl.allocate_shared_memory(tQ.dtype, [STAGES, BLOCK_N, D], TILE)
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
            (_consume, (tOut, gLse, gTable, sQ, sOut, sK, sV, q_full, k_full, v_full, scale_log2, H, T, stride, GROUPS, BLOCK_N, PIECES,
                        SLOTS, STAGES, CAUSAL, TAIL, Q_REGISTERS, 0)),
            (_consume, (tOut, gLse, gTable, sQ, sOut, sK, sV, q_full, k_full, v_full, scale_log2, H, T, stride, GROUPS, BLOCK_N, PIECES,
                        SLOTS, STAGES, CAUSAL, TAIL, Q_REGISTERS, 1)),
            (_produce, (tQ, tK, tV, gTable, sQ, sK, sV, q_full, k_full, v_full, H, T, stride, GROUPS, BLOCK_N, PIECES, SLOTS, STAGES,
                        CAUSAL, SHARED_BY)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (_consume, (tOut, gLse, gTable, sQ, sOut, sK, sV, q_full, k_full, v_full, scale_log2, H, T, stride, GROUPS, BLOCK_N, PIECES,
                        SLOTS, STAGES, CAUSAL, TAIL, Q_REGISTERS, 0)),
            (_consume, (tOut, gLse, gTable, sQ, sOut, sK, sV, q_full, k_full, v_full, scale_log2, H, T, stride, GROUPS, BLOCK_N, PIECES,
                        SLOTS, STAGES, CAUSAL, TAIL, Q_REGISTERS, 1)),
            (_consume, (tOut, gLse, gTable, sQ, sOut, sK, sV, q_full, k_full, v_full, scale_log2, H, T, stride, GROUPS, BLOCK_N, PIECES,
                        SLOTS, STAGES, CAUSAL, TAIL, Q_REGISTERS, 2)),
            (_produce, (tQ, tK, tV, gTable, sQ, sK, sV, q_full, k_full, v_full, H, T, stride, GROUPS, BLOCK_N, PIECES, SLOTS, STAGES,
                        CAUSAL, SHARED_BY)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 32])  # fmt: skip
