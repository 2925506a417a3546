"""Variants as edits of the present kernels: bulk.cu of sum_norm_v3_pipeline.cu, early_norms.py of triton_norms.py and partials.py."""
from pathlib import Path
H, S = Path(".gpu/norm60"), Path("src/rooftile/ops/_shared")
def edit(t, *pairs):
    for a, b in pairs:
        assert t.count(a) >= 1, a
        t = t.replace(a, b)
    return t
t = (S / "cuda/sum_norm_v3_pipeline.cu").read_text()
t = t[: t.index("// gDw[N], gDb[N] and gDxb[N] = sums")]
a = t.index("  const auto fetch = [&]"); b = t.index("  float rDw[VECS][WIDTH]")
t = t[:a] + """  // A row of lanes has its own slots, brought by its first thread in three copies, and a barrier a stage.
  const int l = threadIdx.x % LANES, r = threadIdx.x / LANES;
  const auto fetch = [&](int stage, bool there) {
    if (l == 0 && there) {
      uint4* sTo = sX + stage * VECS * SLOT + r * (VECS * SLOT / ROWS);
      MBarrier* sBar = &sFull[stage][r];
      mbarrier_arrive_expect(sBar, N * int(2 * sizeof(R) + sizeof(T)));
      bulk_load(sTo + 2 * VECS * LANES, gDout_next, N * int(sizeof(T)), sBar, policy);
      bulk_load(sTo, gS_next, N * int(sizeof(R)), sBar, policy);
      bulk_load(sTo + VECS * LANES, gDsum_next, N * int(sizeof(R)), sBar, policy);
    }
    gDout_next += step * stride_dout, gDsum_next += step * stride_dsum, gS_next += step * stride_s;
  };
  uint4 *const sFirst = sX + r * (VECS * SLOT / ROWS) + l, *sAt = sFirst;
  if (l == 0) {
    for (int s = 0; s < STAGES; ++s) mbarrier_init(&sFull[s][r], 1);
    mbarrier_fence();
  }
  if (LANES == WARP) __syncwarp();
  else __syncthreads();
#pragma unroll
  for (int s = 0; s < STAGES; ++s) fetch(s, i_m + s * step < M);
""" + t[b:]
t = edit(t,
    ('#include "rooftile/policy.cuh"', '#include "rooftile/mbarrier.cuh"\n#include "rooftile/policy.cuh"\n#include "rooftile/tma.cuh"'),
    ('static_assert(LANES <= WARP ? THREADS % WARP == 0 : LANES == THREADS, "a row belongs to a part of a warp or to the block");',
     'static_assert(LANES == WARP ? THREADS % WARP == 0 : LANES == THREADS, "a row belongs to a warp or to the block");'),
    ("  __shared__ Pair sPartial[2][WARP];\n", "  __shared__ Pair sPartial[2][WARP];\n  __shared__ MBarrier sFull[STAGES][ROWS];\n"),
    ("reinterpret_cast<Narrow*>(sAt + 2 * THREADS - threadIdx.x) + threadIdx.x", "reinterpret_cast<Narrow*>(sAt + 2 * VECS * LANES - threadIdx.x % LANES) + threadIdx.x % LANES"),
    ("*narrow(sAt + v * SLOT)", "narrow(sAt)[v * LANES]"), ("*narrow(sAgain + v * SLOT)", "narrow(sAgain)[v * LANES]"),
    ("sAt[v * SLOT + THREADS]", "sAt[(VECS + v) * LANES]"), ("sAt[v * SLOT]", "sAt[v * LANES]"), ("sAgain[v * SLOT]", "sAgain[v * LANES]"),
    ("  let_next_stand_by();", "  int stage = 0, phase = 0;\n  let_next_stand_by();"),
    ("    const bool there = ROWS == 1 || rest > 0;  // of a row that is not, all is zeros, also its rstd: it adds nothing, and only must not be written\n",
     "    constexpr bool there = true;\n    if (ROWS > 1 && rest <= 0) break;\n"),
    ("    copy_wait<STAGES - 1>();  // this row has come, the later ones need not\n", "    mbarrier_wait(&sFull[stage][r], phase);\n"),
    ("    sum = row_reduce<LANES>(sum, SumPair(), sPartial, parity);\n",
     "    sum = row_reduce<LANES>(sum, SumPair(), sPartial, parity);\n    if (LANES > WARP && i > 0) fetch(stage == 0 ? STAGES - 1 : stage - 1, rest + 1 > STAGES);  // all have left the row before\n"),
    ("    fetch(sAt, rest > STAGES);\n    sAt = sAt == sFirst + (STAGES - 1) * VECS * SLOT ? sFirst : sAt + VECS * SLOT;\n",
     "    if (LANES == WARP) {\n      __syncwarp();\n      fetch(stage, rest > STAGES);\n    }\n    if (++stage == STAGES) stage = 0, phase ^= 1;\n    sAt = sFirst + stage * VECS * SLOT;\n"),
    ("  copy_wait<0>();\n", ""),
    ("  constexpr int WIDTH = 16 / sizeof(R), ROWS", "  static_assert(LANES == WARP || STAGES >= 2, \"the next row is asked for once all have left the row before\");\n  constexpr int WIDTH = 16 / sizeof(R), ROWS"),
)
(H / "bulk.cu").write_text(t)
t = (S / "triton_norms.py").read_text()
p = (S / "partials.py").read_text()
p = p[p.index("@triton.jit"):]
t = edit(t, ("from rooftile.ops._shared.launch import cdiv, launch, power_of_2", "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n\nfrom rooftile.ops._shared.launch import cdiv, launch, parts, power_of_2"),
    ("from rooftile.ops._shared.partials import _add_rows, add_rows\n", ""),
    ("    AXIS: tl.constexpr = 0 if gSums is None else 1\n", "    AXIS: tl.constexpr = 0 if gSums is None else 1\n    gdc_launch_dependents()\n"))
p = edit(p, ("    which = tl.program_id(1) + WHICH\n", "    gdc_wait()\n    which = tl.program_id(1) + WHICH\n"), ("num_warps=max(4, block // 32)\n", "num_warps=max(4, block // 32), launch_pdl=True\n"))
a = t.index("@triton.jit\ndef _add_three")
(H / "early_norms.py").write_text(t[:a] + p + "\n\n" + t[a:])
# spread: a block's warps have rows a grid apart, so that multiprocessors differ by one row and not by a block's
t = (H / "bulk.cu").read_text()
(H / "spread.cu").write_text(edit(t, ("first = blockIdx.x * (long long)ROWS, i_m = first + threadIdx.x / LANES;", "first = blockIdx.x, i_m = first + threadIdx.x / LANES * (long long)gridDim.x;")))
