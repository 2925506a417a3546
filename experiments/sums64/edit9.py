from pathlib import Path
H = Path(__file__).parent
def sub(s, a, b, n=1):
    assert s.count(a) == n, (s.count(a), a); return s.replace(a, b)
s = (H / "v6_first.cu").read_text()
a = s.index("  for (int here = 0; here < count; here += ROWS) {"); b = s.index("  if (came) keep();\n  __syncthreads();")
s = s[:a] + '''  int here = 0;
  auto take = [&](int r) {  // a row, and the one that comes ROWS behind it is asked for
    float rF[WIDTH];
    open(rF, rX[r]);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) rSum[k] += rF[k];
    if (here + r < more) behind(rX[r], gNext, policy, rSum[0]);
    gNext += stride;
  };
  for (; here < count; here += ROWS) {
    if (here + ROWS <= border) {  // most of them
#pragma unroll
      for (int r = 0; r < ROWS; ++r) take(r);
      continue;
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (here + r >= border) {
        if (here + r >= count) break;
        if (came) keep();
        else if (segment.is_one() && mine) put(gOut + segment.i_e * N + i_n, rSum);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) rSum[k] = 0.0f;
        segment.advance(first + here + r);
        border = ends(), came = false;
      }
      take(r);
    }
  }
''' + s[b:]
(H / "v6_fast.cu").write_text(s)
