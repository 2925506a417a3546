from pathlib import Path
H = Path(__file__).parent
def sub(s, a, b, n=1):
    assert s.count(a) == n, (s.count(a), a); return s.replace(a, b)
NEAR = '''// find_near of ragged.cuh in two: its first turn is asked for before the rows are, and does not wait behind them.
template <typename I, int LANES = WARP> struct Near {
  long long M, E, i_m, step, from, at;
  I seen;
  ROOFTILE_DEVICE Near(const I* gOffsets, long long M, long long E, long long i_m) : M(M), E(E), i_m(i_m) {
    const float about = float(i_m) / float(M) * float(E), away = 2.0f * sqrtf(float(E));  // cuts at random are off by a quarter of it
    step = (long long)(away * (2.0f / (LANES - 1))) + 1, from = (long long)(about - away), at = from + lane() % LANES * step;
    seen = 0;
    if (0 <= at && at <= E) seen = ask(gOffsets + at);
  }
  static ROOFTILE_DEVICE I ask(const I* g) {
#ifdef ROOFTILE_SIMULATOR
    return *g;
#else
    I x;
    if constexpr (sizeof(I) == 8) asm volatile("ld.global.b64 %0, [%1];" : "=l"(x) : "l"(g));
    else asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(g));
    return x;
#endif
  }
  template <int FEW> ROOFTILE_DEVICE long long found(const I* gOffsets) const {
    const unsigned is_before = __ballot_sync(ALL_LANES, at < 0 || (at <= E && seen <= i_m)) >> (lane() - lane() % LANES);
    const int before = __popc(is_before & (0xffffffffu >> (WARP - LANES)));
    const long long low = before > 0 ? from + (before - 1) * step + 1 : 0, high = before < LANES ? from + before * step : E + 1;
    return passed<FEW, LANES>(gOffsets, max(low, 0ll), min(high, E + 1), i_m);
  }
};

'''
s = (H / "v6_roll.cu").read_text()
s = sub(s, "// The last runs are a quarter", NEAR + "// The last runs are a quarter")
s = sub(s, "  ask(0);  // on its way while", "  const Near<I, (LANES < 8 ? 8 : LANES)> near(gOffsets, M, LANES < 8 ? -1 : E, first);\n  ask(0);  // on its way while")
s = sub(s, "found = find_near<LANES, 4>(gOffsets, M, E, first);", "found = near.template found<4>(gOffsets);")
(H / "v6_first.cu").write_text(s)
s = (H / "v7_b.cu").read_text()
s = sub(s, "// A warp's stretch is `tiles` tiles", NEAR + "// A warp's stretch is `tiles` tiles")
s = sub(s, "  keep(first), keep(count);\n", "  const Near<I> near(gOffsets, M, E, first - 1);\n  first += near.at < -(1ll << 62);  // never; but where x is asked for hangs on where offsets are\n  keep(first), keep(count);\n")
s = sub(s, "unsigned cursor = count > 0 ? find_near(gOffsets, M, E, first - 1) : 0;", "unsigned cursor = count > 0 ? near.template found<8>(gOffsets) : 0;")
(H / "v7_first.cu").write_text(s)
