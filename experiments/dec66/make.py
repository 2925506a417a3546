"""Variants of v2_fragments.cu for 8 bits, D = 128. usage: python make.py"""
from pathlib import Path
H = Path(__file__).resolve().parent
OLD = Path("/work/main/src/rooftile/ops/attention_decode/cuda/v2_fragments.cu").read_text()
for p in H.glob("*.cu"):
    if p.stem != "micro": p.unlink()

def sub(s, *pairs):
    for a, b in pairs:
        assert s.count(a) == 1, (s.count(a), a)
        s = s.replace(a, b)
    return s
def between(s, a, b, new):  # from a on, before b
    assert s.count(a) == 1 and b in s[s.index(a):], (s.count(a), a, b)
    i = s.index(a)
    return s[:i] + new + s[s.index(b, i):]

SWAP = (("i_s = blockIdx.x, splits = gridDim.x, i_g = blockIdx.y", "i_s = blockIdx.y, splits = gridDim.y, i_g = blockIdx.x"), ("int(gridDim.y) * group", "int(gridDim.x) * group"))
LB = "__global__ void __launch_bounds__(WARPS* WARP, PER)"
def swap(s, n=0): return sub(s, *SWAP, *(((LB, LB.replace("void", f"void __cluster_dims__({n}, 1, 1)")),) if n else ()))
def policy(s): return sub(s, ("evict_first(bytes)", "evict_first(2 * bytes)"))

# .H1: two pairs of one word, without a shift
BOTH = """// Four neighbours of 8 bits.
ROOFTILE_DEVICE void halves(unsigned four, unsigned& low, unsigned& high) {
#if !defined(ROOFTILE_SIMULATOR) && __CUDA_ARCH__ >= 890
  asm("{\\n.reg .b16 l, h;\\nmov.b32 {l, h}, %2;\\ncvt.rn.f16x2.e4m3x2 %0, l;\\ncvt.rn.f16x2.e4m3x2 %1, h;\\n}" : "=r"(low), "=r"(high) : "r"(four));
#else
  low = halves(four), high = halves(four >> 16);
#endif
}

ROOFTILE_DEVICE unsigned pack(float a, float b, __half) {"""
def h1(s): return sub(s, ("ROOFTILE_DEVICE unsigned pack(float a, float b, __half) {", BOTH),
    ("a[o] = halves(rK[o][i]), a[2 + o] = halves(rK[o][i] >> 16);", "halves(rK[o][i], a[o], a[2 + o]);"),
    ("a[2 * o] = halves(both), a[2 * o + 1] = halves(both >> 16);", "halves(both, a[2 * o], a[2 * o + 1]);"))

COPY = """// 16 bytes, AT bytes behind sX: the offset is the instruction's.
template <int AT> ROOFTILE_DEVICE void copy_to(char* sX, const void* gX, bool there, Policy policy) {
#ifdef ROOFTILE_SIMULATOR
  copy_async<16>(sX + AT, gX, there);
#else
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0 + %4], [%1], 16, %2, %3;" ::"r"(shared_address(sX)), "l"(gX), "r"(there ? 16 : 0), "l"(policy), "n"(AT) : "memory");
#endif
}

// A block has a share of one sequence's keys for"""
ASK = """  const int i_row = l / PIECES, i_piece = l % PIECES;  // a lane's part of a copy, which is of 4 rows
  static_assert(BYTES && PIECES == 8, "of this lab");
  const C* gKeys = gK + i_g * k_g + (PAGED ? 0 : i_b * k_m) + i_piece * EACH + i_row * k_s;
  const C* gValues = gV + i_g * v_g + (PAGED ? 0 : i_b * v_m) + i_piece * EACH + i_row * v_s;
  if (!PAGED) gKeys += n * k_s, gValues += n * v_s;  // the tile that is asked for next
  const long long turn_k = step * k_s, turn_v = step * v_s, four_k = 4 * k_s, four_v = 4 * v_s;
  Policy policy = evict_first(bytes);  // of what may be there; each is read once
#ifndef ROOFTILE_SIMULATOR
  policy = Policy(__shfl_sync(ALL_LANES, unsigned(policy >> 32), 0)) << 32 | __shfl_sync(ALL_LANES, unsigned(policy), 0);  // folded away; else it is made anew for each copy
#endif
  char* sWarp = reinterpret_cast<char*>(sPieces + w * (STAGES * 2 * TILE));
  char *sEven = sWarp + at<PIECES>(i_row, i_piece) * 16, *sOdd = sWarp + at<PIECES>(4 + i_row, i_piece) * 16;  // rows 0 to 3 of 8, and 4 to 7
  unsigned missing = 0;  // a bit for each tile on its way whose page does not exist: page 0 comes in its place, and its scores become NaN
  unsigned gone = 0;     // of the 32 tiles
  auto place = [&](int2 which) {  // 16 bytes each, from the cache's beginning
    const bool known = 0 <= which.x && which.x < pages;
    const long long m = known ? which.x : 0;
    gone = __ballot_sync(ALL_LANES, !known);
    return make_uint2(unsigned((m * k_m + which.y * k_s) >> 4), unsigned((m * v_m + which.y * v_s) >> 4));
  };
  uint2 there_;  // of the 32 tiles, a lane each
  if constexpr (PAGED) there_ = place(here);
  const int length = checked(*gLength);
  const int lowest = PAGED && window ? max(length - T - window + 1, 0) : 0;  // the first key that any query sees, where a tile begins before it
  const int span = max(length - lowest, 0);
  auto ask = [&](int ahead, int stage) {
    const int from = n + ahead * step + i_row - lowest;
    const C *gFromK = gKeys, *gFromV = gValues;
    if constexpr (PAGED) {
      const unsigned off_k = __shfl_sync(ALL_LANES, there_.x, looked_up), off_v = __shfl_sync(ALL_LANES, there_.y, looked_up);
      missing |= (gone >> looked_up & 1) << ahead;
      if (++looked_up == WARP) looked_up = 0, there_ = place(later), later = look_up(n + ahead * step + (WARP + 1) * step);
      gFromK += (long long)off_k * 16, gFromV += (long long)off_v * 16;
    } else {
      gKeys += turn_k, gValues += turn_v;
    }
    const int far = stage * (2 * TILE * 16);
    char *sA = sEven + far, *sB = sOdd + far;
    auto both = [&](auto half, auto a) {
      constexpr int A = decltype(a)::value;
      char* s = decltype(half)::value ? sB : sA;
      const bool there = unsigned(from + A / 16 * 8 / 8 + 0) < unsigned(span);
      (void)there;
    };
    (void)both;
#pragma unroll
    for (int r = 0; r < KEYS; r += 8) {
      const bool low = unsigned(from + r) < unsigned(span), high = unsigned(from + r + 4) < unsigned(span);
      // r is known when unrolled; its offset must be the instruction's
      pair<TILE>(r, sA, sB, gFromK, gFromV, gFromK + four_k, gFromV + four_v, low, high, policy);
      gFromK += 2 * four_k, gFromV += 2 * four_v;
    }
    copy_commit();
  };
"""
i = ASK.index("    auto both ="); j = ASK.index("#pragma unroll\n    for (int r")
ASK = ASK[:i] + ASK[j:]
PAIR = """template <int TILE, int R> ROOFTILE_DEVICE void pair_at(char* sA, char* sB, const void* k0, const void* v0, const void* k4, const void* v4, bool low, bool high, Policy policy) {
  constexpr int AT = R * 8 * 16;
  copy_to<AT>(sA, k0, low, policy), copy_to<AT + TILE * 16>(sA, v0, low, policy);
  copy_to<AT>(sB, k4, high, policy), copy_to<AT + TILE * 16>(sB, v4, high, policy);
}
template <int TILE> ROOFTILE_DEVICE void pair(int r, char* sA, char* sB, const void* k0, const void* v0, const void* k4, const void* v4, bool low, bool high, Policy policy) {
  if (r == 0) pair_at<TILE, 0>(sA, sB, k0, v0, k4, v4, low, high, policy);
  if (r == 8) pair_at<TILE, 8>(sA, sB, k0, v0, k4, v4, low, high, policy);
  if (r == 16) pair_at<TILE, 16>(sA, sB, k0, v0, k4, v4, low, high, policy);
  if (r == 24) pair_at<TILE, 24>(sA, sB, k0, v0, k4, v4, low, high, policy);
}

"""
LOOP = """  const int whole = window ? 0 : length - T + 1;  // keys before it are seen by all queries
  int stage = 0;
  const char *sK0 = sWarp + at<PIECES>(g, t) * 16, *sK1 = sWarp + at<PIECES>(g, 4 + t) * 16;
  const char *sV0 = sWarp + (TILE + at<PIECES>(2 * t, g)) * 16, *sV1 = sWarp + (TILE + at<PIECES>(2 * t + 1, g)) * 16;
  for (; n < length; n += step) {
    const int far = stage * (2 * TILE * 16);
    copy_wait<STAGES - 2>();
    __syncwarp();
    ask(STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);  // where the tile before this one was
    float rS[KG][TILES][4] = {};
    const char *sK[2] = {sK0 + far, sK1 + far}, *sV[2] = {sV0 + far, sV1 + far};
#pragma unroll
    for (int c = 0; c < K_LOADS; ++c)
#pragma unroll
      for (int u = 0; u < KG; ++u) {
        Vec<unsigned, 4> rK[2];
#pragma unroll
        for (int o = 0; o < 2; ++o) rK[o].whole = *reinterpret_cast<const uint4*>(sK[c] + (16 * u + 8 * o) * PIECES * 16);
#pragma unroll
        for (int i = 0; i < EACH / 4; ++i) {
          unsigned a[4];
#pragma unroll
          for (int o = 0; o < 2; ++o) halves(rK[o][i], a[o], a[2 + o]);
#pragma unroll
          for (int j = 0; j < TILES; ++j) {
            const int k = c * (EACH / 4) + i;
            if constexpr (KEPT) {
              mma_m16n8k16<F>(rS[u][j], a, rQ[j][k]);
            } else {
              const uint2 both = sQ[(j * STEPS + k) * WARP + l];
              mma_m16n8k16<F>(rS[u][j], a, {both.x, both.y});
            }
          }
        }
      }
    const bool exists = !PAGED || !(missing & 1), masked = n + KEYS > whole;
    missing >>= 1;
    bool more = false;
#pragma unroll
    for (int u = 0; u < KG; ++u)
#pragma unroll
      for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) rS[u][j][i] *= rScale[j][i % 2];
    if (masked || !exists || cap > 0.0f) {  // the same for all lanes, and rarely
      __syncwarp();
#pragma unroll
      for (int u = 0; u < KG; ++u)
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float& x = rS[u][j][i];
            if (cap > 0.0f) x = tanhf(x) * cap;
            if (!exists) x = NOT;
            if (masked) {
              const int key = n + 16 * u + i / 2 * 8 + g, last = rLast[j][i % 2];
              if (key > last || (window && key <= last - window)) x = -INF;
            }
          }
    }
#pragma unroll
    for (int u = 0; u < KG; ++u)
#pragma unroll
      for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) more |= rS[u][j][i] > rMax[j][i % 2];
    if (__any_sync(ALL_LANES, more)) {
#pragma unroll
      for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float most = rMax[j][e];
#pragma unroll
          for (int u = 0; u < KG; ++u) most = fmaxf(most, fmaxf(rS[u][j][e], rS[u][j][2 + e]));
#pragma unroll
          for (int distance = 4; distance < WARP; distance *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, distance));
          const float base = most == -INF ? 0.0f : most, shrink = exp2_fast(rMax[j][e] - base);
          rMax[j][e] = most, rBase[j][e] = base - LIFT<F>, rSum[j][e] *= shrink;
#pragma unroll
          for (int m = 0; m < STEPS; ++m) rAcc[j][m][e] *= shrink, rAcc[j][m][2 + e] *= shrink;
        }
    }
    unsigned rP[KG][TILES][2];
#pragma unroll
    for (int u = 0; u < KG; ++u)
#pragma unroll
      for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int o = 0; o < 2; ++o) {
          const float a = exp2_fast(rS[u][j][2 * o] - rBase[j][0]), b = exp2_fast(rS[u][j][2 * o + 1] - rBase[j][1]);
          rSum[j][0] += a, rSum[j][1] += b;
          rP[u][j][o] = turned(pack(a, b, F()));
        }
#pragma unroll
    for (int u = 0; u < KG; ++u) {
      Vec<unsigned, 4> rV[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) rV[r].whole = *reinterpret_cast<const uint4*>(sV[r % 2] + (16 * u + r / 2 * 8) * PIECES * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int x = 0; x < 2; ++x) {  // two columns of values
          unsigned a[4];
#pragma unroll
          for (int o = 0; o < 2; ++o) halves(__byte_perm(rV[2 * o][i], rV[2 * o + 1][i], x ? 0x7362 : 0x5140), a[2 * o], a[2 * o + 1]);
#pragma unroll
          for (int j = 0; j < TILES; ++j) mma_m16n8k16<F>(rAcc[j][i * 2 + x], a, rP[u][j]);
        }
    }
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
"""
def lean(s, kg=1):
    s = h1(s)
    s = sub(s, ("constexpr int KEYS = 16;", f"constexpr int KG = {kg}, KEYS = 16 * KG;"), ("// A block has a share of one sequence's keys for", PAIR + "// A block has a share of one sequence's keys for"))
    s = sub(s, (PAIR, COPY.removesuffix("// A block has a share of one sequence's keys for") + PAIR))
    s = between(s, "  const int i_row = l / PIECES, i_piece", "#pragma unroll\n  for (int i = 0; i < STAGES - 1; ++i) ask(i, i);", ASK)
    s = sub(s, ("n += PAGED ? first / KEYS * KEYS : first;", "n += PAGED ? first / KEYS * KEYS : first;"))
    s = between(s, "  const int whole = window ? 0", "  let_next_stand_by();", LOOP)
    return s
def bare(s):  # reads, and nothing else: of each copy's last row a word, so that all is waited for
    i, j = s.index("    float rS[KG][TILES][4] = {};"), s.index("    stage = stage == STAGES - 1 ? 0 : stage + 1;")
    return s[:i] + """    rAcc[0][0][0] += float(*reinterpret_cast<const unsigned*>(sK0 + far) & *reinterpret_cast<const unsigned*>(sV0 + far));
""" + s[j:]
def nocvt(s): return sub(s, ("  asm(\"{\\n.reg .b16 l, h;\\nmov.b32 {l, h}, %2;\\ncvt.rn.f16x2.e4m3x2 %0, l;\\ncvt.rn.f16x2.e4m3x2 %1, h;\\n}\" : \"=r\"(low), \"=r\"(high) : \"r\"(four));", "  low = four, high = four;"))
def noval(s): return s  # kept for what comes
L, K = lean(OLD), lean(OLD, 2)
ALL = {"h1": h1(OLD), "lean": L, "k32": K, "c2": swap(OLD, 2), "c4": swap(OLD, 4), "c8": swap(OLD, 8), "lean_c2": swap(L, 2), "lean_c4": swap(L, 4), "k32_c2": swap(K, 2),
       "pol": policy(OLD), "x_bare": bare(L), "x_bare_c4": swap(bare(L), 4), "x_bare32": bare(K), "x_nocvt": nocvt(L)}
for name, text in ALL.items(): (H / f"{name}.cu").write_text(text)

# two: a warp takes two neighbouring key heads' tiles: 256 bytes of a row in one piece, two chains of products, one vote
def two(s):
    s = sub(lean(s, 2), ("KEYS = 16 * KG;", "KEYS = 16;"), ("TILE = KEYS * PIECES;", "TILE = KG * KEYS * PIECES;"), ("sMax[WARPS][QUERIES], sSum[WARPS][QUERIES]", "sMax[WARPS][KG * QUERIES], sSum[WARPS][KG * QUERIES]"),
        ("i_g = blockIdx.y, step", "i_g = KG * blockIdx.y, step"),
        ("const int i_row = l / PIECES, i_piece = l % PIECES;  // a lane's part of a copy, which is of 4 rows", "const int i_row = l / 16, i_piece = l % 16;  // a lane's part of a copy, which is of 2 rows of both heads"),
        ("four_k = 4 * k_s, four_v = 4 * v_s;", "two_k = 2 * k_s, two_v = 2 * v_s;"),
        ("  char *sEven = sWarp + at<PIECES>(i_row, i_piece) * 16, *sOdd = sWarp + at<PIECES>(4 + i_row, i_piece) * 16;  // rows 0 to 3 of 8, and 4 to 7\n",
         "  char* sTo[4];\n#pragma unroll\n  for (int r = 0; r < 4; ++r) sTo[r] = sWarp + (i_piece / 8 * KEYS * PIECES + at<PIECES>(2 * r + i_row, i_piece % 8)) * 16;\n"),
        ("    char *sA = sEven + far, *sB = sOdd + far;\n", ""))
    s = between(s, "#pragma unroll\n    for (int r = 0; r < KEYS; r += 8) {", "    copy_commit();", """#pragma unroll
    for (int r = 0; r < KEYS / 2; ++r) {
      const bool there = unsigned(from + 2 * r) < unsigned(span);
      char* s = sTo[r % 4] + far;
      if (r < 4) copy_to<0>(s, gFromK, there, policy), copy_to<TILE * 16>(s, gFromV, there, policy);
      else copy_to<8 * PIECES * 16>(s, gFromK, there, policy), copy_to<(TILE + 8 * PIECES) * 16>(s, gFromV, there, policy);
      gFromK += two_k, gFromV += two_v;
    }
""")
    s = sub(s, ("unsigned rQ[KEPT ? TILES : 1][STEPS][2];", "static_assert(KEPT, \"of this lab\");\n  unsigned rQ[KG][TILES][STEPS][2];"),
        ("float rScale[TILES][2], rMax[TILES][2], rBase[TILES][2], rSum[TILES][2] = {};", "float rScale[KG][TILES][2], rMax[KG][TILES][2], rBase[KG][TILES][2], rSum[KG][TILES][2] = {};"),
        ("  if (k_scaled) scale *= gKs[i_g * stride_ks];\n", "  float each_[KG];\n  for (int u = 0; u < KG; ++u) each_[u] = k_scaled ? scale * gKs[(i_g + u) * stride_ks] : scale;\n"),
        ("  scale *= softcap > 0.0f ? 1.0f / softcap : LOG2E;\n", "  for (int u = 0; u < KG; ++u) each_[u] *= softcap > 0.0f ? 1.0f / softcap : LOG2E;\n#pragma unroll\n  for (int u = 0; u < KG; ++u)\n"),
        ("(i_g * group + m - i_t * group) * q_h", "((i_g + u) * group + m - i_t * group) * q_h"), ("rQ[KEPT ? j : 0];", "rQ[u][j];"),
        ("      rScale[j][e] = scale *", "      rScale[u][j][e] = each_[u] *"), ("rMax[j][e] = -INF, rBase[j][e] = -float(LIFT<F>);", "rMax[u][j][e] = -INF, rBase[u][j][e] = -float(LIFT<F>);"),
        ("float rAcc[TILES][STEPS][4] = {};", "float rAcc[KG][TILES][STEPS][4] = {};"),
        ("mma_m16n8k16<F>(rS[u][j], a, rQ[j][k]);", "mma_m16n8k16<F>(rS[u][j], a, rQ[u][j][k]);"), ("rS[u][j][i] *= rScale[j][i % 2];", "rS[u][j][i] *= rScale[u][j][i % 2];"),
        ("const int key = n + 16 * u + i", "const int key = n + i"), ("rS[u][j][i] > rMax[j][i % 2]", "rS[u][j][i] > rMax[u][j][i % 2]"),
        ("""          float most = rMax[j][e];
#pragma unroll
          for (int u = 0; u < KG; ++u) most = fmaxf(most, fmaxf(rS[u][j][e], rS[u][j][2 + e]));
""", "          float most = fmaxf(rMax[u][j][e], fmaxf(rS[u][j][e], rS[u][j][2 + e]));\n"),
        ("""    if (__any_sync(ALL_LANES, more)) {
#pragma unroll
""", """    if (__any_sync(ALL_LANES, more)) {
#pragma unroll
      for (int u = 0; u < KG; ++u)
#pragma unroll
"""),
        ("shrink = exp2_fast(rMax[j][e] - base);\n          rMax[j][e] = most, rBase[j][e] = base - LIFT<F>, rSum[j][e] *= shrink;", "shrink = exp2_fast(rMax[u][j][e] - base);\n          rMax[u][j][e] = most, rBase[u][j][e] = base - LIFT<F>, rSum[u][j][e] *= shrink;"),
        ("rAcc[j][m][e] *= shrink, rAcc[j][m][2 + e] *= shrink;", "rAcc[u][j][m][e] *= shrink, rAcc[u][j][m][2 + e] *= shrink;"),
        ("exp2_fast(rS[u][j][2 * o] - rBase[j][0]), b = exp2_fast(rS[u][j][2 * o + 1] - rBase[j][1]);\n          rSum[j][0] += a, rSum[j][1] += b;", "exp2_fast(rS[u][j][2 * o] - rBase[u][j][0]), b = exp2_fast(rS[u][j][2 * o + 1] - rBase[u][j][1]);\n          rSum[u][j][0] += a, rSum[u][j][1] += b;"),
        ("mma_m16n8k16<F>(rAcc[j][i * 2 + x], a, rP[u][j]);", "mma_m16n8k16<F>(rAcc[u][j][i * 2 + x], a, rP[u][j]);"),
        ("""#pragma unroll
  for (int j = 0; j < TILES; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sum = rSum[j][e];""", """#pragma unroll
  for (int u = 0; u < KG; ++u)
#pragma unroll
  for (int j = 0; j < TILES; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sum = rSum[u][j][e];"""),
        ("sMax[w][m] = rMax[j][e], sSum[w][m] = sum;", "sMax[w][u * QUERIES + m] = rMax[u][j][e], sSum[w][u * QUERIES + m] = sum;"),
        ("(sAcc + (w * rows + m) * D + d) = make_float2(rAcc[j][k][e], rAcc[j][k][2 + e]);", "(sAcc + ((w * KG + u) * rows + m) * D + d) = make_float2(rAcc[u][j][k][e], rAcc[u][j][k][2 + e]);"),
        ("H = int(gridDim.y) * group;", "H = int(gridDim.y) * KG * group;"), ("  const float share = v_scaled ? gVs[i_g * stride_vs] : 1.0f;\n", ""),
        ("i < rows * (D / 4);", "i < KG * rows * (D / 4);"),
        ("const int m = i / (D / 4), d = i % (D / 4) * 4, i_h = i_g * group + m % group, i_t = m / group;", "const int u = i / (D / 4) / rows, m = i / (D / 4) - u * rows, d = i % (D / 4) * 4, i_h = (i_g + u) * group + m % group, i_t = m / group;\n    const float share = v_scaled ? gVs[(i_g + u) * stride_vs] : 1.0f;"),
        ("most = fmaxf(most, sMax[o][m]);", "most = fmaxf(most, sMax[o][u * QUERIES + m]);"), ("exp2_fast(sMax[o][m] - base);", "exp2_fast(sMax[o][u * QUERIES + m] - base);"),
        ("(sAcc + (o * rows + m) * D + d);", "(sAcc + ((o * KG + u) * rows + m) * D + d);"), ("sum += sSum[o][m] * by;", "sum += sSum[o][u * QUERIES + m] * by;"))
    return s
T = two(OLD)
def bare_two(s): return bare(s).replace("rAcc[0][0][0] +=", "rAcc[0][0][0][0] +=")
MORE = {"two": T, "x_baretwo": bare_two(T)}
for name, text in MORE.items(): (H / f"{name}.cu").write_text(text)

D65 = H.parent / "dec65"
for x in ("c", "cn", "cc2", "pre_l"): (H / f"d65_{x}.cu").write_text((D65 / f"{x}.cu").read_text())

# lean2: keys are read before the next tile is asked for (whose addresses fill the wait), and the scores are two chains of four products, added
def early(s):
    s = sub(s, ("    ask(STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);  // where the tile before this one was\n    float rS[KG][TILES][4] = {};\n    const char *sK[2] = {sK0 + far, sK1 + far}, *sV[2] = {sV0 + far, sV1 + far};\n",
        """    float rS[KG][TILES][4] = {}, rT[KG][TILES][4] = {};
    const char *sK[2] = {sK0 + far, sK1 + far}, *sV[2] = {sV0 + far, sV1 + far};
    Vec<unsigned, 4> rKeys[K_LOADS][KG][2];
#pragma unroll
    for (int c = 0; c < K_LOADS; ++c)
#pragma unroll
      for (int u = 0; u < KG; ++u)
#pragma unroll
        for (int o = 0; o < 2; ++o) rKeys[c][u][o].whole = *reinterpret_cast<const uint4*>(sK[c] + (16 * u + 8 * o) * PIECES * 16);
    ask(STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);  // where the tile before this one was
"""),
        ("""        Vec<unsigned, 4> rK[2];
#pragma unroll
        for (int o = 0; o < 2; ++o) rK[o].whole = *reinterpret_cast<const uint4*>(sK[c] + (16 * u + 8 * o) * PIECES * 16);
""", "        Vec<unsigned, 4>(&rK)[2] = rKeys[c][u];\n"),
        ("mma_m16n8k16<F>(rS[u][j], a, rQ[j][k]);", "mma_m16n8k16<F>(i % 2 ? rT[u][j] : rS[u][j], a, rQ[j][k]);"), ("mma_m16n8k16<F>(rS[u][j], a, {both.x, both.y});", "mma_m16n8k16<F>(i % 2 ? rT[u][j] : rS[u][j], a, {both.x, both.y});"),
        ("rS[u][j][i] *= rScale[j][i % 2];", "rS[u][j][i] = (rS[u][j][i] + rT[u][j][i]) * rScale[j][i % 2];"))
    return s
(H / "lean2.cu").write_text(early(L))
