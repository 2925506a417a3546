from pathlib import Path
s = Path("/work/main/src/rooftile/ops/scan/cuda/v5_pipeline.cu").read_text()
def sub(a, b, n=1):
    global s
    assert s.count(a) == n, (s.count(a), a)
    s = s.replace(a, b)
# A: whole vectors only, and a ticket's row and tile are divided once, by the warp that takes it
sub("  __shared__ unsigned sTicket[STAGES + 2];\n", "  __shared__ uint2 sPlace[STAGES + 2];  // row and tile of a ticket; a row from M on is none\n")
sub("  const unsigned total = unsigned(M * tiles);\n", "")
sub("""    return tiles == 1 ? blockIdx.x + unsigned(k) * gridDim.x : unsigned(atomicAdd(gState, 1ull));
""", """    const unsigned ticket = tiles == 1 ? blockIdx.x + unsigned(k) * gridDim.x : unsigned(atomicAdd(gState, 1ull));
    return uint2{ticket / unsigned(tiles), ticket % unsigned(tiles)};
""")
sub("""  const auto fill = [&](unsigned ticket, int k) {
    const long long vectors = N / WIDTH, i_m = ticket / tiles, i = (ticket % tiles) * (long long)TILE + i_lane;
    const T* gFrom = gX + i_m * stride;
    uint4* sTo = sX + k % STAGES * TILE + i_lane;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const long long at = i + v * 32;
      copy_async(sTo + v * 32, gFrom + (REVERSE ? vectors - 1 - at : at) * WIDTH, ticket < total && at < vectors, policy);
    }
    copy_commit();
  };
""", """  const auto left = [&](uint2 place) { return place.x < M ? N / WIDTH - place.y * (long long)TILE - i_lane : 0; };  // vectors of the row from this thread's first on
  const auto fill = [&](uint2 place, int slot) {
    const long long more = left(place);
    const T* gFrom = gX + place.x * stride + (REVERSE ? more - 1 : place.y * (long long)TILE + i_lane) * WIDTH;
    uint4* sTo = sX + slot * TILE + warp() * VECTORS * 32;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) copy_async(sTo + lies(v * 32 + lane()), gFrom + (REVERSE ? -v : v) * 32 * WIDTH, v * 32 < more, policy);
    copy_commit();
  };
""")
i, j = s.index("  using Part = Strip"), s.index("  const auto tell = ")
s = s[:i] + """  // A lane has VECTORS neighbouring vectors; they came side by side, as they will be written.
  const auto add_up = [&](int slot, int ring) {
    const uint4* sFrom = sX + slot * TILE + warp() * VECTORS * 32;
    S sum = 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      Vec<T, WIDTH> rX;
      rX.whole = sFrom[lies(lane() * VECTORS + v)];
      S part = 0;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) part += S(rX[REVERSE ? WIDTH - 1 - k : k]);
      sum += part;
    }
    S before = sum;
#pragma unroll
    for (int reach = 1; reach < 32; reach *= 2) {
      const S other = __shfl_up_sync(ALL_LANES, before, reach);
      if (lane() >= reach) before += other;
    }
    if (lane() == 31) sSum[ring][warp()] = before;
    before = __shfl_up_sync(ALL_LANES, before, 1);
    sLane[ring][threadIdx.x] = lane() ? before : S(0);
  };
""" + s[j:]
sub("  __shared__ S sSum[LEAD + 2][WARPS], sBefore[2];\n", "  __shared__ S sSum[LEAD + 2][WARPS], sBefore[2], sLane[LEAD + 2][WARPS * 32];  // what a warp's part has before a lane's\n")
i, j = s.index("  const auto tell = "), s.index("  const bool looks")
s = s[:i] + """  const auto tell = [&](int ring, uint2 place) {  // one lane
    S sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum += sSum[ring][w];
    if (place.x < M) store_relaxed(gState + 1 + place.x * (long long)tiles + place.y, THERE | bits(sum));
  };

""" + s[j:]
i = s.index("  for (int s = 0; s <= STAGES; ++s)")
s = s[:i] + """  for (int s = 0; s <= STAGES; ++s) {  // each ticket when the last is there: blocks take turns from the start
    if (threadIdx.x == 0) sPlace[s] = take(s);
    __syncthreads();
    if (!looks && s < STAGES) fill(sPlace[s], s);
  }
  copy_wait<STAGES - LEAD>();
  __syncwarp();
  if (!looks)
    for (int k = 0; k < LEAD; ++k) add_up(k, k);
  __syncthreads();
  if (looks && tiles > 1 && lane() == 0)
    for (int k = 0; k < LEAD; ++k) tell(k, sPlace[k]);
  Before<S> before;
  const auto look = [&](uint2 place, int k) {
    if (place.x >= M) return;
    const S sum = tiles > 1 ? before(gState + 1 + place.x * (long long)tiles, place.x, int(place.y)) : S(0);
    if (lane() == 0) sBefore[k % 2] = sum;
  };
  if (looks) look(sPlace[0], 0);
  int slot = 0, ahead = LEAD, ring = 0, ring_ahead = LEAD, turn = 0;  // of tile k and of LEAD behind it: k % STAGES, k % (LEAD + 2), k % (STAGES + 2)
  const auto next_of = [](int i, int count, int by = 1) { return i + by >= count ? i + by - count : i + by; };
  for (int k = 0;; ++k) {
    const uint2 place = sPlace[turn];
    if (place.x >= M) break;  // the whole block: the tickets after it are larger
    if (!looks) {
      copy_wait<STAGES - LEAD - 1>();
      __syncwarp();
      add_up(ahead, ring_ahead);
    }
    __syncthreads();
    if (looks) {  // two ways through the L2, a microsecond each, have as long as a tile takes to be written and the next one to be summed
      if (tiles > 1 && lane() == 0) tell(ring_ahead, sPlace[next_of(turn, STAGES + 2, LEAD)]);
      uint2 next;
      if (lane() == 0) next = take(k + 1 + STAGES);
      look(sPlace[next_of(turn, STAGES + 2)], k + 1);
      if (lane() == 0) sPlace[next_of(turn, STAGES + 2, STAGES + 1)] = next;
    } else {
      uint4* sTile = sX + slot * TILE + warp() * VECTORS * 32;
      S start = sBefore[k % 2];
#pragma unroll
      for (int w = 0; w < WARPS - 1; ++w)
        if (w < warp()) start += sSum[ring][w];
      start += sLane[ring][threadIdx.x];
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        Vec<T, WIDTH> rX;
        rX.whole = sTile[lies(lane() * VECTORS + v)];
        S sum = 0;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
          const int e = REVERSE ? WIDTH - 1 - k : k;
          const S x = S(rX[e]);
          rX[e] = T(start + (EXCLUSIVE ? sum : sum + x));
          sum += x;
        }
        start += sum;
        sTile[lies(lane() * VECTORS + v)] = rX.whole;
      }
      __syncwarp();
      const long long more = left(place);
      T* gTo = gOut + place.x * N + (REVERSE ? more - 1 : place.y * (long long)TILE + i_lane) * WIDTH;
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        Vec<T, WIDTH> rOut;
        rOut.whole = sTile[lies(v * 32 + lane())];
        if (v * 32 < more) store_global(gTo + (REVERSE ? -v : v) * 32 * WIDTH, rOut);
      }
      fill(sPlace[next_of(turn, STAGES + 2, STAGES)], slot);
    }
    slot = next_of(slot, STAGES), ahead = next_of(ahead, STAGES), ring = next_of(ring, LEAD + 2), ring_ahead = next_of(ring_ahead, LEAD + 2);
    turn = next_of(turn, STAGES + 2);
  }
  copy_wait<0>();
}
"""
sub("  const int i_lane = warp()", """  // Where vector i of a warp's part lies: neither a lane's neighbours nor 32 side by side meet in a bank.
  const auto lies = [](int i) { return i ^ (i >> 3 & (VECTORS - 1)); };
  const int i_lane = warp()""")
sub("extern __shared__ __align__(128) uint4 sX[];  // STAGES tiles; a slot is read by the thread that has it filled: no barrier stands between", "extern __shared__ __align__(128) uint4 sX[];  // STAGES tiles; a slot is read by the warp that has it filled: no barrier stands between")
Path("scan_own.cu").write_text(s)
# running: one addition an element in place of two
a = s
sub("          rX[e] = T(start + (EXCLUSIVE ? sum : sum + x));\n          sum += x;\n", "          if (EXCLUSIVE) rX[e] = T(start);\n          start += x;\n          if (!EXCLUSIVE) rX[e] = T(start);\n")
sub("        S sum = 0;\n#pragma unroll\n        for (int k = 0; k < WIDTH; ++k) {\n          const int e", "#pragma unroll\n        for (int k = 0; k < WIDTH; ++k) {\n          const int e")
sub("        start += sum;\n", "")
Path("scan_run.cu").write_text(s)
