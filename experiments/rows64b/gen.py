"""Variants of the kernels, written beside this file."""
from pathlib import Path
H = Path(__file__).resolve().parent
OPS = Path("/work/wt-rows64b/src/rooftile/ops")
def rep(t, *pairs):
    for a, b in pairs:
        assert t.count(a) == 1, (t.count(a), a)
        t = t.replace(a, b)
    return t
def out(name, t): (H / f"{name}.cu").write_text(t)
# ---- embedding
E = (OPS / "embedding/cuda/v2_balanced.cu").read_text()
LOADS = """    for (int l = mine ? __ffs(int(mine)) - 1 : 0; l < stop; l += TOKENS) {
      Vec<T, WIDTH> rX[TOKENS][VECTORS], rOld[TOGETHER ? TOKENS : 1][VECTORS];
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {
        const T* gRow = gDout + __shfl_sync(ALL_LANES, place.i_m, (l + t) % WARP) * stride + i_n;
#pragma unroll
        for (int k = 0; k < VECTORS; ++k)
          if (l + t < stop && i_n + k * WARP * WIDTH < N) load_global(rX[t][k], gRow + k * WARP * WIDTH);
      }
"""
ROLLED = """    const int start = mine ? __ffs(int(mine)) - 1 : 0;
    Vec<T, WIDTH> rX[TOKENS][VECTORS], rOld[TOGETHER ? TOKENS : 1][VECTORS];
    const auto ask = [&](int t, int l) {
      const T* gRow = gDout + __shfl_sync(ALL_LANES, place.i_m, l % WARP) * stride + i_n;
#pragma unroll
      for (int k = 0; k < VECTORS; ++k)
        if (l < stop && i_n + k * WARP * WIDTH < N) load_global(rX[t][k], gRow + k * WARP * WIDTH);
    };
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) ask(t, start + t);
    for (int l = start; l < stop; l += TOKENS) {
"""
ADD = """          for (int c = 0; c < WIDTH; ++c) rSum[k][c] += float(rX[t][k][c]);
        if (!(last >> (l + t) & 1)) continue;
"""
ADD_ROLLED = """          for (int c = 0; c < WIDTH; ++c) rSum[k][c] += float(rX[t][k][c]);
        ask(t, l + TOKENS + t);
        if (!(last >> (l + t) & 1)) continue;
"""
def roll(t): return rep(t, (LOADS, ROLLED), (ADD, ADD_ROLLED))
CLEAR_END = """  for (int r = (int(blockIdx.x) % pieces * warps() + warp()) * 8; r < here; r += pieces * warps() * 8)
    zeros<T, WIDTH>(gDw, low + r, ~(sSeen[r / WARP] >> r % WARP) & ((1u << min(8, here - r)) - 1), N);
}
"""
def zero(t, early):
    t = rep(t, (CLEAR_END, "}\n"),
        ("  if (!ADDED && pieces) clear_early<T, WIDTH>(gDw, gDealt, gBegins, rows, parts, pieces, V, N);\n", f"""  extern __shared__ __align__(128) unsigned sSeen[];
  int low = 0, here = 0, r = 0, step = 0;
  if (!ADDED && pieces) {{
    clear_early<T, WIDTH>(gDw, gDealt, gBegins, rows, parts, pieces, V, N);
    low = int(blockIdx.x) / pieces * rows, here = min(rows, V - low), step = pieces * warps() * 8, r = (int(blockIdx.x) % pieces * warps() + warp()) * 8;
  }}
  const auto clear_some = [&] {{
    if (ADDED || r >= here) return;
    zeros<T, WIDTH>(gDw, low + r, ~(sSeen[r / WARP] >> r % WARP) & ((1u << min(8, here - r)) - 1), N);
    r += step;
  }};
#pragma unroll 1
  for (int k = 0; k < {early}; ++k) clear_some();
"""),
        ("  if (i_s * span >= count) return;\n", "  if (i_s * span >= count) {\n    while (!ADDED && r < here) clear_some();\n    return;\n  }\n"),
        ("    if (!(mine >> (WARP - 1))) break;  // the next turn would find none\n  }\n}", "    if (!(mine >> (WARP - 1))) break;  // the next turn would find none\n  }\n  while (!ADDED && r < here) clear_some();\n}"))
    if "const auto ask" in t:
        return rep(t, ("    for (int t = 0; t < TOKENS; ++t) ask(t, start + t);\n    for (int l = start; l < stop; l += TOKENS) {\n", "    for (int t = 0; t < TOKENS; ++t) ask(t, start + t);\n    for (int l = start; l < stop; l += TOKENS) {\n      clear_some();\n"))
    return rep(t, ("      if constexpr (TOGETHER) {\n#pragma unroll\n        for (int t = 0; t < TOKENS; ++t) {\n          if (l + t >= stop ||", "      clear_some();\n      if constexpr (TOGETHER) {\n#pragma unroll\n        for (int t = 0; t < TOKENS; ++t) {\n          if (l + t >= stop ||"))
def hint(t, how):
    t = rep(t, ("load_global(rX[t][k], gRow + k * WARP * WIDTH)", "hinted(rX[t][k], gRow + k * WARP * WIDTH)"))
    policy = {"last": "evict_last(1ll << 40)", "first": "POLICY", "none": ""}[how]
    body = {"last": "createpolicy.fractional.L2::evict_last.b64 %0, 1.0;", "first": "createpolicy.fractional.L2::evict_first.b64 %0, 1.0;"}[how]
    return rep(t, ("// A row's sums, or as much", """template <typename T, int WIDTH> __device__ __forceinline__ void hinted(Vec<T, WIDTH>& r, const T* g) {
#ifdef ROOFTILE_SIMULATOR
  load_global(r, g);
#else
  if constexpr (sizeof(T) * WIDTH == 16) {
    unsigned long long policy;
    asm("BODY" : "=l"(policy));
    r.whole = load_global(reinterpret_cast<const uint4*>(g), policy);
  } else load_global(r, g);
#endif
}

// A row's sums, or as much""".replace("BODY", body)), ('#include "rooftile/early.cuh"\n', '#include "rooftile/early.cuh"\n#include "rooftile/policy.cuh"\n'))
def cs(t):  # zeros that go first
    return rep(t, ("i_n += WARP * WIDTH) write<16>(gRow + i_n, rZero);", "i_n += WARP * WIDTH) __stcs(reinterpret_cast<uint4*>(gRow + i_n), uint4{0, 0, 0, 0}), (void)rZero;"))
out("e_base", E)
out("e_roll", roll(E))
for k in (0, 1, 2): out(f"e_zero{k}", zero(E, k))
for k in (1, 2): out(f"e_rz{k}", zero(roll(E), k))
out("e_last", hint(E, "last")); out("e_first", hint(E, "first"))
out("e_noread", rep(E, ("load_global(rX[t][k], gRow + k * WARP * WIDTH)", "fill(rX[t][k], T(1.0f + float(gRow == nullptr)))")))
out("e_only", rep(E, ("  if (i_s * span >= count) return;\n", "  if (i_s * span >= count || V > 0) return;\n")))
out("e_nozero", rep(E, ("    zeros<T, WIDTH>(gDw, low + r, ~(sSeen", "    if (V < 0) zeros<T, WIDTH>(gDw, low + r, ~(sSeen")))
# ---- the gradient of a norm of a sum
D = (OPS / "_shared/cuda/sum_norm_v3_pipeline.cu").read_text()
def ahead(t):
    return rep(t, ("    Pair sum = {0.0f, 0.0f};  // of g, of g (s - mean)\n", """    unsigned kept[ceil_div(VECS * WIDTH, 32)] = {};
    if constexpr (Branch::DROPS) {
      const unsigned least = unsigned(branch.threshold), all = branch.threshold >> 32 ? 0u : ~0u;
#pragma unroll
      for (int v = 0; v < VECS; ++v)
#pragma unroll
        for (int k = 0; k < WIDTH; k += 4) {
          const Words w = philox((row + v * NEXT + k) / 4, branch.seed);
          const int at = (v * WIDTH + k) % 32;
          unsigned bits = (w.a >= least ? 1u << at : 0u) | (w.b >= least ? 2u << at : 0u);
          bits |= (w.c >= least ? 4u << at : 0u) | (w.d >= least ? 8u << at : 0u);
          kept[(v * WIDTH + k) / 32] |= bits & all;
        }
#pragma unroll
      for (int k = 0; k < ceil_div(VECS * WIDTH, 32); ++k) asm volatile("" : "+r"(kept[k]));
    }
    Pair sum = {0.0f, 0.0f};  // of g, of g (s - mean)
"""), ("        branch(rAway, row + v * NEXT);\n", """        if constexpr (Branch::DROPS)
#pragma unroll
          for (int k = 0; k < WIDTH; ++k) rAway[k] = kept[(v * WIDTH + k) / 32] >> (v * WIDTH + k) % 32 & 1 ? rAway[k] * branch.scale : 0.0f;
"""))
END_OLD = D[D.index("  float* gTo = gPartial + blockIdx.x * (long long)N;\n"):]
END_NEW = """  constexpr int SUMS = WEIGHT + BIAS + LACKS, FOURS = WIDTH / 4;
  if constexpr (ROWS > 1 && SUMS > 0 && SUMS * WIDTH * 4 <= STAGES * SLOT * 16 / THREADS) {
    // The slots are free, and have room for all sums at once: of each a row for each row of threads, four columns beside those of the next lane.
    float4* sD = reinterpret_cast<float4*>(sX);
    int part = 0;
    const auto park = [&](const float(&rD)[VECS][WIDTH]) {
#pragma unroll
      for (int v = 0; v < VECS; ++v)
#pragma unroll
        for (int k = 0; k < FOURS; ++k)
          sD[((part * ROWS + int(threadIdx.x) / LANES) * VECS * FOURS + v * FOURS + k) * LANES + int(threadIdx.x) % LANES] = {rD[v][4 * k], rD[v][4 * k + 1], rD[v][4 * k + 2], rD[v][4 * k + 3]};
      ++part;
    };
    __syncthreads();
    if (WEIGHT) park(rDw);
    if (BIAS) park(rDb);
    if (LACKS) park(rDxb);
    __syncthreads();
    for (int i = threadIdx.x; i < SUMS * VECS * LANES; i += THREADS) {
      const int l = i % LANES, v = i / LANES % VECS, p = i / (LANES * VECS), i_n = v * NEXT + l * WIDTH;
      if (i_n >= N) continue;
      Vec<float, 4> rTotal[FOURS] = {};
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int k = 0; k < FOURS; ++k) {
          const float4 rPart = sD[((p * ROWS + r) * VECS * FOURS + v * FOURS + k) * LANES + l];
          rTotal[k][0] += rPart.x, rTotal[k][1] += rPart.y, rTotal[k][2] += rPart.z, rTotal[k][3] += rPart.w;
        }
#pragma unroll
      for (int k = 0; k < FOURS; ++k) store_global(gPartial + (p * (long long)gridDim.x + blockIdx.x) * N + i_n + 4 * k, rTotal[k]);
    }
    return;
  }
"""
def end(t): return rep(t, (END_OLD, END_NEW + END_OLD))
NARROW = """ROOFTILE_DEVICE Words philox32(unsigned a, unsigned long long seed) {
  unsigned b = 0, c = 0, d = 0, k0 = unsigned(seed), k1 = unsigned(seed >> 32);
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    const unsigned long long left = a * 0xD2511F53ull, right = c * 0xCD9E8D57ull;
    a = unsigned(right >> 32) ^ b ^ k0, b = unsigned(right), c = unsigned(left >> 32) ^ d ^ k1, d = unsigned(left);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {a, b, c, d};
}

"""
out("d_base", D); out("d_ahead", ahead(D)); out("d_end", end(D)); out("d_both", end(ahead(D)))
# ---- loss and gradient at once
C = (OPS / "cross_entropy/cuda/v7_cluster.cu").read_text()
INC = Path("/work/wt-rows64b/src/rooftile/cuda/include/rooftile")
def inc(n): return (INC / n).read_text().replace("#pragma once", "")
def whole(t, c=(), a=()):
    cc, aa = rep(inc("capped.cuh"), *c), rep(inc("cross_entropy_ahead.cuh"), *a)
    return t.replace('#include "rooftile/cross_entropy_ahead.cuh"', '#include "rooftile/cross_entropy.cuh"\n' + cc.replace('#include "rooftile/cross_entropy.cuh"', "") + aa.replace('#include "rooftile/cross_entropy.cuh"', "").replace('#include "rooftile/capped.cuh"', ""))
LOAD = "  for (int i = first; i < end; i += THREADS) copy_async<16>(sMine + i, gVec + i);  // all of it in flight\n  copy_commit();\n"
TAKE = """  copy_wait<0>();
  take.hide(sMine, first, end, THREADS);
  for (int i = take.fours(sMine, first, end, THREADS); i < end; i += THREADS) take(sMine[i], i);
"""
def staged(t, copy="copy_async<16>(sMine + i, gVec + i)"):
    return rep(t, (LOAD, f"""  constexpr int PARTS = 4;  // each is summed up while the later ones come
  const int part = ceil_div(share, PARTS * 4 * THREADS) * 4 * THREADS;
#pragma unroll 1
  for (int p = 0; p < PARTS; ++p) {{
    for (int i = first + p * part; i < min(end, rank * share + (p + 1) * part); i += THREADS) {copy};
    copy_commit();
  }}
"""), (TAKE, """#pragma unroll 1
  for (int p = 0; p < PARTS; ++p) {
    if (p == 0) copy_wait<3>();
    else if (p == 1) copy_wait<2>();
    else if (p == 2) copy_wait<1>();
    else copy_wait<0>();
    const int from = first + p * part, stop = min(end, rank * share + (p + 1) * part);
    take.hide(sMine, from, stop, THREADS);
    for (int i = take.fours(sMine, from, stop, THREADS); i < stop; i += THREADS) take(sMine[i], i);
  }
"""))
def policy(t, how):
    t = rep(t, ('#include "rooftile/cluster.cuh"\n', '#include "rooftile/cluster.cuh"\n#include "rooftile/policy.cuh"\n'), ("  uint4* gVec = reinterpret_cast<uint4*>(gRow);\n", f"""  uint4* gVec = reinterpret_cast<uint4*>(gRow);
  Policy policy = 0;
#ifndef ROOFTILE_SIMULATOR
  asm("createpolicy.fractional.L2::evict_{how}.b64 %0, 1.0;" : "=l"(policy));
#endif
"""))
    return t.replace("copy_async<16>(sMine + i, gVec + i)", "copy_async(sMine + i, gVec + i, true, policy)")
TWO = [("    if (near && reach <= taken.near.half)", "    if (near && reach <= taken.near.quarter)\n      give_near<T, 2>(x, gradient, taken.near);\n    else if (near && reach <= taken.near.half)")]
out("c_base", C); out("c_staged", staged(C)); out("c_last", policy(C, "last")); out("c_first", policy(C, "first"))
out("c_sfirst", policy(staged(C), "first"))
out("c_stwo", whole(staged(C), (), TWO))
out("c_x_alone", rep(C, ("  exchange_send(sExchange, 0, group_reduce<WARP>(take.settled(), Combine()));\n", "  const Online only = group_reduce<WARP>(take.settled(), Combine());\n"),
    ("row_loss(exchange_reduce(sExchange, 0, Combine()), take.known)", "row_loss(only, take.known)"), ("  cluster_wait();\n  for (int i = first; i < end; i += THREADS) give(", "  for (int i = first; i < end; i += THREADS) give("),
    ("  cluster_wait();  // all blocks are there: from here on they may be told of sums\n", ""), ("  cluster_arrive();  // this one has read what is not its own\n", ""), ("  exchange_open(sExchange);\n", "")))
GIVE = "  for (int i = first; i < end; i += THREADS) give(gVec, sMine[i], i, take);\n"
out("c_x_same", rep(C, (GIVE, "  for (int i = first; i < end; i += THREADS) __stwb(gVec + i, r.loss == 1e9f ? uint4{} : sMine[i]);\n")))
out("c_x_quiet", rep(C, (GIVE, "  for (int i = first; i < end; i += THREADS)\n    if (r.loss == 1e9f || i == first) give(gVec, sMine[i], i, take);\n")))
out("c_x_sum", rep(C, ("  for (int i = take.fours(sMine, first, end, THREADS); i < end; i += THREADS) take(sMine[i], i);\n", "  take.fours(sMine, first, min(end, first - int(threadIdx.x) + 4 * THREADS), THREADS);\n")))
out("e_cs", cs(E))
def full(t):
    t = t.replace("l + t < stop && i_n + k * WARP * WIDTH < N", "l + t < stop").replace("l < stop && i_n + k * WARP * WIDTH < N", "l < stop")
    return rep(t, ("          const long long at = i_n + k * WARP * WIDTH;\n          if (at < N) {\n", "          {\n"),
        ("finish<ADDED && !TOGETHER>(gDw + i_v * N + at, rSum[k])", "finish<ADDED && !TOGETHER>(gTo + k * WARP * WIDTH, rSum[k])"),
        ("write<16>(gPartial + (2 * i_s + (begin >= first)) * N + at, rSum[k])", "write<16>(gPart + k * WARP * WIDTH, rSum[k])"),
        ("        const bool whole = end - begin <= SHORT ||", "        T* gTo = gDw + i_v * N + i_n;\n        float* gPart = gPartial + (2 * i_s + (begin >= first)) * N + i_n;\n        const bool whole = end - begin <= SHORT ||"))
out("e_full", full(E)); out("e_rfull", full(roll(E))); out("e_rz1full", zero(full(roll(E)), 1)); out("e_z1full", zero(full(E), 1))
WAIT = """  cluster_wait();  // all blocks are there: from here on they may be told of sums
  __syncthreads();
  cluster_arrive();  // this one has read what is not its own
"""
SHOW = "  take.show(sMine);\n"
def later(t): return rep(t, (WAIT, ""), (SHOW, SHOW + WAIT))
PARTS_OLD = """  constexpr int PARTS = 4;  // each is summed up while the later ones come
  const int part = ceil_div(share, PARTS * 4 * THREADS) * 4 * THREADS;
#pragma unroll 1
  for (int p = 0; p < PARTS; ++p) {
    for (int i = first + p * part; i < min(end, rank * share + (p + 1) * part); i += THREADS) copy_async<16>(sMine + i, gVec + i);
    copy_commit();
  }
"""
def early(t, parts):  # asked for before the target is known
    return rep(t, (PARTS_OLD, f"  ask({parts}, PARTS);\n" if parts < 4 else ""), ("  if (!is_class(t, ignore, V)) {\n", f"""  constexpr int PARTS = 4;  // each is summed up while the later ones come
  const int part = ceil_div(share, PARTS * 4 * THREADS) * 4 * THREADS;
  const auto ask = [&](int from, int to) {{
#pragma unroll 1
    for (int p = from; p < to; ++p) {{
      for (int i = first + p * part; i < min(end, rank * share + (p + 1) * part); i += THREADS) copy_async<16>(sMine + i, gVec + i);
      copy_commit();
    }}
  }};
  ask(0, {parts});
  if (!is_class(t, ignore, V)) {{
"""), ("    if (rank == 0 && threadIdx.x == 0) gLoss[i_m] = value;\n    return;\n", "    if (rank == 0 && threadIdx.x == 0) gLoss[i_m] = value;\n    copy_wait<0>();\n    return;\n"),
    ("    give_nothing<T>(", "    copy_wait<0>();\n    give_nothing<T>("))
S = staged(C)
out("c_sw", later(S)); out("c_s1", early(later(S), 1)); out("c_sall", early(later(S), 4)); out("c_s1n", early(S, 1))
out("c_w", later(C)); out("c_s1two", whole(early(later(S), 1), (), TWO))
def counted(t):  # the first turn's keys and tokens come beside the count
    return rep(t, ("int i, int count, int base, int first, int span) {\n  Place p = {};\n  if (i >= count) return p;\n  p.i_v = int(gKeys[i]) - base, p.i_m = (long long)gOrder[i];\n",
                   "int i, int count, int base, int first, int span, Key key, Token token) {\n  Place p = {};\n  if (i >= count) return p;\n  p.i_v = int(key) - base, p.i_m = (long long)token;\n"),
        ("int rows, int parts, int pieces) {\n  constexpr bool TOGETHER", "int rows, int parts, int pieces, int M) {\n  constexpr bool TOGETHER"),
        ("  const int count = gBorders[V];\n", "  const int i_first = int(i_s * span) + lane();\n  Key key = {};\n  Token token = {};\n  if (i_first < M) key = gKeys[i_first], token = gOrder[i_first];  // of what is dropped they are anything\n  const int count = gBorders[V];\n"),
        ("    const Place place = look(gKeys, gOrder, gBorders, turn + lane(), count, base, first, span);\n",
         "    if (turn > first && turn + lane() < count) key = gKeys[turn + lane()], token = gOrder[turn + lane()];\n    const Place place = look(gKeys, gOrder, gBorders, turn + lane(), count, base, first, span, key, token);\n"))
out("e_cnt", counted(E)); out("e_cfull", counted(full(E))); out("e_cz1full", zero(counted(full(E)), 1)); out("e_crz1full", zero(counted(full(roll(E))), 1)); out("e_cz1", zero(counted(E), 1)); out("e_cz2", zero(counted(E), 2))
out("e_cz1last", hint(zero(counted(E), 1), "last"))
DE = (OPS / "embedding/cuda/v5_dealt.cu").read_text()
out("k_keep", rep(DE, ("""  let_next_stand_by();
  for (int r = lane(); r < ranges; r += WARP) own[r] = 0;
  __syncwarp();
  for (int s = 0; s < steps; ++s) {
    const int i_v = row(s);
    take(own, i_v >= 0, i_v / rows);
""", """  let_next_stand_by();
  const int i_first = row(0), r_first = i_first / rows;  // kept for the second walk, of which there mostly is no more
  for (int r = lane(); r < ranges; r += WARP) own[r] = 0;
  __syncwarp();
  for (int s = 0; s < steps; ++s) {
    const int i_v = s ? row(s) : i_first;
    take(own, i_v >= 0, s ? i_v / rows : r_first);
"""), ("    const int i_v = row(s), place = take(own, i_v >= 0, i_v / rows);\n", "    const int i_v = s ? row(s) : i_first, place = take(own, i_v >= 0, s ? i_v / rows : r_first);\n")))
t = (H / "d_ahead.cu").read_text()
AS = '      for (int k = 0; k < ceil_div(VECS * WIDTH, 32); ++k) asm volatile("" : "+r"(kept[k]));\n'
for n in ("d_ahead", "d_both"):
    out(n, rep((H / f"{n}.cu").read_text(), ("#pragma unroll\n" + AS, "#ifndef ROOFTILE_SIMULATOR\n#pragma unroll\n" + AS + "#endif\n")))
def half(t):  # the blocks that come in while the sort runs clear their rows then; those that come after it theirs beside the tokens' loads, by borders
    t = rep(t, ("  if (!ADDED && pieces) clear_early<T, WIDTH>(gDw, gDealt, gBegins, rows, parts, pieces, V, N);\n", """  const bool late = !ADDED && pieces && 2 * blockIdx.x >= gridDim.x;
  if (!ADDED && pieces && !late) clear_early<T, WIDTH>(gDw, gDealt, gBegins, rows, parts, pieces, V, N);
"""), ("  if (i_s * span >= count) return;\n", """  int i_low = 0, step = 0;
  unsigned empty = 0;
  if (late) {
    const int low = int(blockIdx.x) / pieces * rows, here = min(rows, V - low), r = (int(blockIdx.x) % pieces * warps() + warp()) * 8;
    step = pieces * warps() * 8, i_low = low + r;
    const int mine = r + lane() / 8 * step + lane() % 8;
    empty = __ballot_sync(ALL_LANES, mine < here && gBorders[low + mine] == gBorders[low + mine + 1]);
  }
  const auto clear_some = [&] {
    if (ADDED || !empty) return;
    zeros<T, WIDTH>(gDw, i_low, empty & 255, N);
    empty >>= 8, i_low += step;
  };
  if (i_s * span >= count) {
    while (!ADDED && empty) clear_some();
    return;
  }
"""), ("    if (!(mine >> (WARP - 1))) break;  // the next turn would find none\n  }\n}", "    if (!(mine >> (WARP - 1))) break;  // the next turn would find none\n  }\n  while (!ADDED && empty) clear_some();\n}"))
    if "const auto ask" in t:
        return rep(t, ("    for (int t = 0; t < TOKENS; ++t) ask(t, start + t);\n    for (int l = start; l < stop; l += TOKENS) {\n", "    for (int t = 0; t < TOKENS; ++t) ask(t, start + t);\n    for (int l = start; l < stop; l += TOKENS) {\n      clear_some();\n"))
    return rep(t, ("      if constexpr (TOGETHER) {\n#pragma unroll\n        for (int t = 0; t < TOKENS; ++t) {\n          if (l + t >= stop ||", "      clear_some();\n      if constexpr (TOGETHER) {\n#pragma unroll\n        for (int t = 0; t < TOKENS; ++t) {\n          if (l + t >= stop ||"))
out("e_half", half(E)); out("e_chalf", half(counted(E))); out("e_halffull", half(full(E))); out("e_chalflast", hint(half(counted(E)), "last")); out("e_rhalf", half(roll(E)))
out("c_s1last", policy(early(later(S), 1), "last")); out("c_s1first", policy(early(later(S), 1), "first"))
# ---- second lab
out("e_ffull", hint(full(E), "first")); out("e_froll", hint(roll(E), "first")); out("e_frfull", hint(full(roll(E)), "first"))
out("e_nfull", rep(full(E), ("load_global(rX[t][k], gRow + k * WARP * WIDTH)", "rX[t][k].whole = __ldg(reinterpret_cast<const typename Vec<T, WIDTH>::Whole*>(gRow + k * WARP * WIDTH))")))
CS = [("    __stwb(gVec + i, x);\n", "    __stcs(gVec + i, x);\n")]
out("c_cs", whole(C, (), CS)); out("c_lastcs", whole(policy(C, "last"), (), CS)); out("c_lastw", policy(later(C), "last")); out("c_wcs", whole(later(C), (), CS)); out("c_wtwo", whole(later(C), (), TWO))
V6 = (OPS / "cross_entropy/cuda/v6_ahead.cu").read_text()
def policy6(t): return rep(t, ('#include "rooftile/async.cuh"\n', '#include "rooftile/async.cuh"\n#include "rooftile/policy.cuh"\n'), ("  uint4* gVec = reinterpret_cast<uint4*>(gRow);\n", """  uint4* gVec = reinterpret_cast<uint4*>(gRow);
  const Policy policy = evict_last(gridDim.x * (long long)V * int(sizeof(T)));
"""), ("copy_async<16>(sX + i, gVec + i)", "copy_async(sX + i, gVec + i, true, policy)"))
out("s_base", V6); out("s_last", policy6(V6)); out("s_cs", whole(V6, (), CS)); out("s_lastcs", whole(policy6(V6), (), CS))
