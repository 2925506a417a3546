from pathlib import Path
H = Path(__file__).parent
old = (H / "v6_old.cu").read_text()
def sub(s, a, b, n=1):
    assert s.count(a) == n, (s.count(a), a); return s.replace(a, b)
KEEP = '''// x stays in registers. What is made of parameters alone the compiler would make anew for every row, of 64 bits in some twenty-five instructions.
template <typename X> ROOFTILE_DEVICE void keep_whole(X& x) {
#ifndef ROOFTILE_SIMULATOR
  if constexpr (sizeof(X) == 8) asm volatile("" : "+l"(x));
  else asm volatile("" : "+r"(x));
#endif
}

'''
s = sub(old, "// The last runs are a quarter", KEEP + "// The last runs are a quarter")
s = sub(s, "#include \"rooftile/early.cuh\"", "#include \"rooftile/behind.cuh\"\n#include \"rooftile/early.cuh\"")
s = sub(s, "#include \"rooftile/ragged.cuh\"", "#include \"rooftile/ragged.cuh\"\n#include \"rooftile/rows.cuh\"")
s = sub(s, "  const long long first = min(begin + group * chunk, M), last = min(first + chunk, M), i_n =", "  long long first = min(begin + group * chunk, M);\n  const long long i_n =")
s = sub(s, "  const int count = int(last - first);\n", "  int count = int(min(first + chunk, M) - first);\n  keep_whole(first), keep_whole(count);\n")
minimal = s
# the least: first and count stay
(H / "v6_keep.cu").write_text(minimal)
loop0 = s[s.index("  for (int here = 0; here < count; here += ROWS, ask(here)) {"):s.index("  if (came) keep();\n  __syncthreads();")]
def loop(roll):
    return f'''  for (int here = 0; here < count; here += ROWS{"" if roll else ", ask(here)"}) {{
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {{
      if (here + r >= border) {{
        if (here + r >= count) break;
        if (came) keep();
        else if (segment.is_one() && mine) put(gOut + segment.i_e * N + i_n, rSum);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rSum[k] = 0.0f;
        segment.advance(first + here + r);
        border = ends(), came = false;
      }}
      float rF[WIDTH];
      open(rF, rX[r]);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rSum[k] += rF[k];
''' + ('''      if (here + r < more) behind(rX[r], gNext, policy, rSum[0]);
      gNext += stride;
''' if roll else '') + '''    }
  }
'''
OPEN = '''// A lane's part of a row as floats.
template <typename T, int WIDTH> ROOFTILE_DEVICE void open(float (&rF)[WIDTH], Vec<T, WIDTH>& rX) {
  if constexpr (sizeof(T) * WIDTH == 16) unpack<T>(rF, rX.whole);
  else
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rF[k] = float(rX[k]);
}

template <typename T, int WIDTH> ROOFTILE_DEVICE void behind(Vec<T, WIDTH>& rX, const T* gX, Policy policy, float& sum) {
  if constexpr (sizeof(T) * WIDTH == 16) load_behind(rX.whole, gX, policy, sum);
  else load_global(rX, gX);
}

// write of ragged.cuh, as whole vectors.
template <typename T, int WIDTH> ROOFTILE_DEVICE void put(T* g, const float (&rSum)[WIDTH]) {
  constexpr int PART = sizeof(T) * WIDTH > 16 ? int(16 / sizeof(T)) : WIDTH;
#pragma unroll
  for (int k = 0; k < WIDTH; k += PART) {
    Vec<T, PART> rOut;
#pragma unroll
    for (int p = 0; p < PART; ++p) rOut[p] = T(rSum[k + p]);
    store_global(g + k, rOut);
  }
}

'''
def new(roll, blocks):
    t = sub(s, loop0, loop(roll))
    t = sub(t, "// The last runs are a quarter", OPEN + "// The last runs are a quarter")
    t = sub(t, "ROWS > 4 ? 3 : 4", blocks)
    t = sub(t, "  Vec<T, WIDTH> rX[ROWS];", "  Vec<T, WIDTH> rX[ROWS];\n#pragma unroll\n  for (int r = 0; r < ROWS; ++r) fill(rX[r], T(0.0f));\n  const int have = mine ? count : 0, more = have - ROWS;")
    t = sub(t, "if (from + r < count && mine) {", "if (from + r < have) {")
    return t
JOIN = {}
def spec(t):
    t = sub(t, "  if (threadIdx.x == 0) sCount = 0;\n  __syncthreads();\n  earlier_done();\n", '''  Part rTwo[2];  // what most segments that go on behind a run have: asked for before it is known
  const auto ask_two = [&](long long i_n) {
    fill(rTwo[0], 0.0f), fill(rTwo[1], 0.0f);
    if (run < runs && i_n < N) load_global(rTwo[0], gPartial + (runs + run) * N + i_n);
    if (run + 1 < runs && i_n < N) load_global(rTwo[1], gPartial + (run + 1) * N + i_n);
  };
  if (threadIdx.x == 0) sCount = 0;
  __syncthreads();
  earlier_done();
  ask_two((blockIdx.y * LANES + l) * (long long)WIDTH);
''')
    t = sub(t, "  strips([&](long long i_n) {\n    for (int i = lane() / LANES; i < WARP && i_n < N;", "  strips([&](long long i_n) {\n    for (int i = lane() / LANES; vain && i < WARP && i_n < N;")
    t = sub(t, "      float rSum[WIDTH] = {};\n      add(rSum, i_n, run, run, to, 1);\n      write(gOut + open[0] * N + i_n, rSum);\n    }\n", '''      float rSum[WIDTH];
#pragma unroll
      for (int n = 0; n < WIDTH; ++n) rSum[n] = rTwo[0][n] + (to > run ? rTwo[1][n] : 0.0f);
      add(rSum, i_n, run, run + 2, to, 1);
      write(gOut + open[0] * N + i_n, rSum);
    }
    if (i_n + gridDim.y * (long long)(LANES * WIDTH) < N) ask_two(i_n + gridDim.y * (long long)(LANES * WIDTH));
''')
    return t
(H / "v6_spec.cu").write_text(spec(old))
(H / "v6_batch.cu").write_text(spec(new(False, "ROWS > 6 ? 3 : 4")))
(H / "v6_roll.cu").write_text(spec(new(True, "ROWS > 6 ? 3 : 4")))
(H / "v6_roll_now.cu").write_text(new(True, "ROWS > 6 ? 3 : 4"))
(H / "v6_roll5.cu").write_text(spec(new(True, "5")))
