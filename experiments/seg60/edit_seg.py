from pathlib import Path
D = Path("/work/main/src/rooftile/ops/segment_sum/cuda")
def edit(name, out, *pairs):
    s = (D / name).read_text()
    for a, b in pairs:
        assert s.count(a) >= 1, (name, out, a)
        s = s.replace(a, b)
    Path(out).write_text(s)
# policies: what x is asked for as
ANY = 'ROOFTILE_DEVICE Policy of_x(long long) { Policy p; asm("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(p)); return p; }\n'
FIRST = 'ROOFTILE_DEVICE Policy of_x(long long) { Policy p; asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p)); return p; }\n'
NS = "using namespace rooftile;\n"
HINT7 = ("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%5], %6;", "ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%5];")
PLAIN = "ROOFTILE_DEVICE uint4 load_plain(const uint4* g) { uint4 r; asm(\"ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\" : \"=r\"(r.x), \"=r\"(r.y), \"=r\"(r.z), \"=r\"(r.w) : \"l\"(__cvta_generic_to_global(g))); return r; }\n"
for n in ("v6_runs", "v7_warps"):
    edit(f"{n}.cu", f"{n}_any.cu", (NS, NS + ANY), ("= evict_first(", "= of_x("))
    edit(f"{n}.cu", f"{n}_first.cu", (NS, NS + FIRST), ("= evict_first(", "= of_x("))
edit("v6_runs.cu", "v6_runs_256.cu", (NS, NS + PLAIN), ("load_global(reinterpret_cast<const uint4*>(gNext), policy)", "load_plain(reinterpret_cast<const uint4*>(gNext))"))
edit("v7_warps.cu", "v7_warps_256.cu", (NS, NS + PLAIN), HINT7, ("load_global(reinterpret_cast<const uint4*>(gNext + r * WARP * WIDTH), policy)", "load_plain(reinterpret_cast<const uint4*>(gNext + r * WARP * WIDTH))"))
# v6: each group's rows by bulk copies into a ring of its own
edit("v6_runs.cu", "v6_bulk.cu",
 ("template <typename T, typename I, int WIDTH, int LANES, int ROWS>\n__global__ void __launch_bounds__(256, ROWS > 4 ? 3 : 4) runs",
  "template <typename T, typename I, int WIDTH, int LANES, int ROWS, int STAGES, int BLOCKS>\n__global__ void __launch_bounds__(256, BLOCKS) runs"),
 ("  __shared__ float sHead[GROUPS]", "  extern __shared__ __align__(128) uint4 sRing[];  // of each group STAGES times ROWS rows, which lie without gaps as in x\n  __shared__ MBarrier sFull[GROUPS][STAGES];\n  __shared__ float sHead[GROUPS]"),
 ("""  Vec<T, WIDTH> rX[ROWS];
  const T* gNext = gX + first * stride + i_n;
  auto ask = [&](int from) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r, gNext += stride)
      if (from + r < count && mine) {
        if constexpr (sizeof(T) * WIDTH == 16) rX[r].whole = load_global(reinterpret_cast<const uint4*>(gNext), policy);
        else load_global(rX[r], gNext);
      }
  };
  ask(0);  // on its way while the first segment is looked for
""", """  const unsigned peers = LANES == 32 ? ALL_LANES : ((1u << LANES % 32) - 1) << lane() / LANES * LANES;
  const T* gFirst = gX + first * N;
  auto ask = [&](int from, int slot) {  // one lane
    const int bytes = min(ROWS, count - from) * (LANES * 16);
    if (bytes <= 0) return;
    mbarrier_arrive_expect(&sFull[group][slot], bytes);
    bulk_load(sRing + (group * STAGES + slot) * ROWS * LANES, gFirst + from * N, bytes, &sFull[group][slot], policy);
  };
  if (l == 0) {  // on its way while the first segment is looked for
    for (int s = 0; s < STAGES; ++s) mbarrier_init(&sFull[group][s], 1);
    mbarrier_fence();
    for (int s = 0; s < STAGES; ++s) ask(s * ROWS, s);
  }
  __syncwarp();
"""),
 ("  for (int here = 0; here < count; here += ROWS, ask(here)) {\n", "  int slot = 0, parity = 0;\n  for (int here = 0; here < count; here += ROWS) {\n    mbarrier_wait(&sFull[group][slot], parity);\n    const uint4* sX = sRing + (group * STAGES + slot) * ROWS * LANES + l;\n    Vec<T, WIDTH> rX[ROWS];\n#pragma unroll\n    for (int r = 0; r < ROWS; ++r) rX[r].whole = sX[r * LANES];\n    __syncwarp(peers);\n    if (l == 0) ask(here + STAGES * ROWS, slot);\n    if (++slot == STAGES) slot = 0, parity ^= 1;\n"))
# v7: a warp's next tile by one bulk copy, asked for as soon as this one is in registers
edit("v7_warps.cu", "v7_bulk.cu",
 ("  __shared__ float sLaid[WARPS][SIZE];", "  extern __shared__ __align__(128) uint4 sTile[];  // the next tile of each warp\n  __shared__ MBarrier sThere[WARPS];\n  __shared__ float sLaid[WARPS][SIZE];"),
 ("""  if (count >= SIZE) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) rX[r] = load_global(reinterpret_cast<const uint4*>(gNext + r * WARP * WIDTH), policy);
  }
""", """  uint4* const sNext = sTile + w * (ROWS * WARP);
  int parity = 0;
  auto ask = [&](long long from) {
    if (l == 0) {
      mbarrier_arrive_expect(&sThere[w], SIZE * int(sizeof(T)));
      bulk_load(sNext, gX + from, SIZE * int(sizeof(T)), &sThere[w], policy);
    }
  };
  if (l == 0) mbarrier_init(&sThere[w], 1), mbarrier_fence();
  __syncwarp();
  if (count >= SIZE) ask(first);
"""),
 ("      if constexpr (decltype(more)::value) load_behind(rX[r], gNext + r * WARP * WIDTH, policy, run[r]);\n", ""),
 ("    const unsigned bits = sMarks[l];\n", "    const unsigned bits = sMarks[l];\n    if (size == SIZE) {\n      mbarrier_wait(&sThere[w], parity), parity ^= 1;\n#pragma unroll\n      for (int r = 0; r < ROWS; ++r) rX[r] = sNext[r * WARP + l];\n      __syncwarp();\n      if constexpr (decltype(more)::value) ask(tile + SIZE);\n    }\n"))
# the same with two tiles on their way: one behind the other in a ring of two
s = Path("v7_bulk.cu").read_text()
for a, b in ((" = sTile + w * (ROWS * WARP);", " = sTile + w * (2 * ROWS * WARP);"), ("MBarrier sThere[WARPS];", "MBarrier sThere[WARPS][2];"),
 ("  int parity = 0;\n", "  int parity = 0, slot = 0;\n"), ("auto ask = [&](long long from) {", "auto ask = [&](long long from, int slot) {"),
 ("mbarrier_arrive_expect(&sThere[w],", "mbarrier_arrive_expect(&sThere[w][slot],"), ("bulk_load(sNext, gX + from, SIZE * int(sizeof(T)), &sThere[w], policy)", "bulk_load(sNext + slot * ROWS * WARP, gX + from, SIZE * int(sizeof(T)), &sThere[w][slot], policy)"),
 ("mbarrier_init(&sThere[w], 1), mbarrier_fence();", "mbarrier_init(&sThere[w][0], 1), mbarrier_init(&sThere[w][1], 1), mbarrier_fence();"),
 ("  if (count >= SIZE) ask(first);\n", "  if (count >= SIZE) ask(first, 0);\n  if (count >= 2 * SIZE) ask(first + SIZE, 1);\n"),
 ("mbarrier_wait(&sThere[w], parity), parity ^= 1;", "mbarrier_wait(&sThere[w][slot], parity);"), ("rX[r] = sNext[r * WARP + l];", "rX[r] = sNext[(slot * ROWS + r) * WARP + l];"),
 ("      if constexpr (decltype(more)::value) ask(tile + SIZE);\n", "      if (count - here >= 3 * SIZE) ask(tile + 2 * SIZE, slot);\n      slot ^= 1, parity ^= slot == 0;\n"),
 ("__launch_bounds__(BLOCK, 768 / BLOCK)", "__launch_bounds__(BLOCK, 512 / BLOCK)")):
    assert s.count(a) == 1, a
    s = s.replace(a, b)
Path("v7_bulk2.cu").write_text(s)
