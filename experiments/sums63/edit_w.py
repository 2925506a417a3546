s=open('v7_opaque.cu').read()
def sub(s, pairs):
    for o,n in pairs:
        assert s.count(o)>=1, o
        s=s.replace(o,n)
    return s
def make(v):
    t=s
    t=sub(t,[
     ("constexpr int WIDTH = 16 / sizeof(T), ROWS = SIZE / (WARP * WIDTH), GROUP = 4, WARPS = BLOCK / WARP;",
      f"constexpr int PART = 16 / sizeof(T), EACH = {v} * 4 / PART > 0 ? {v} * 4 / PART : 1, WIDTH = PART * EACH, ROWS = SIZE / (WARP * WIDTH), GROUP = ROWS < 4 ? ROWS : 4, WARPS = BLOCK / WARP;"),
     ("  uint4 rX[ROWS];\n","  uint4 rX[ROWS][EACH];\n"),
     ("    for (int r = 0; r < ROWS; ++r) rX[r] = load_global(reinterpret_cast<const uint4*>(gNext + r * WARP * WIDTH), policy);\n",
      "    for (int r = 0; r < ROWS; ++r)\n#pragma unroll\n      for (int v = 0; v < EACH; ++v) rX[r][v] = load_global(reinterpret_cast<const uint4*>(gNext + r * WARP * WIDTH + v * PART), policy);\n"),
     ('''      float rF[WIDTH];
      open(rF, rX[r], T(0.0f));
      run[r] = 0.0f;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
        const bool cut = bits >> (r * WIDTH + k) & 1;
        if (cut) sLaid[w][(r * WARP + l) * WIDTH + k] = run[r];
        run[r] = (cut ? 0.0f : run[r]) + rF[k];
      }
      if constexpr (decltype(more)::value) load_behind(rX[r], gNext + r * WARP * WIDTH, policy, run[r]);
''','''      run[r] = 0.0f;
#pragma unroll
      for (int v = 0; v < EACH; ++v) {
        float rF[PART];
        open(rF, rX[r][v], T(0.0f));
#pragma unroll
        for (int k = 0; k < PART; ++k) {
          const bool cut = bits >> (r * WIDTH + v * PART + k) & 1;
          if (cut) sLaid[w][(r * WARP + l) * WIDTH + v * PART + k] = run[r];
          run[r] = (cut ? 0.0f : run[r]) + rF[k];
        }
        if constexpr (decltype(more)::value) load_behind(rX[r][v], gNext + r * WARP * WIDTH + v * PART, policy, run[r]);
      }
'''),
     ('''      for (int r = 0; r < ROWS; ++r) {
        const int i = r * WARP * WIDTH + l * WIDTH;
        Wide<T> rPart;
        fill(rPart, T(0.0f));
        if (i + WIDTH <= left) load(rPart, gNext + r * WARP * WIDTH);
        else
#pragma unroll
          for (int k = 0; k < WIDTH; ++k)
            if (i + k < left) rPart[k] = gNext[r * WARP * WIDTH + k];
        rX[r] = rPart.whole;
      }
''','''      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int v = 0; v < EACH; ++v) {
          const int at = r * WARP * WIDTH + v * PART, i = at + l * WIDTH;
          Wide<T> rPart;
          fill(rPart, T(0.0f));
          if (i + PART <= left) load(rPart, gNext + at);
          else
#pragma unroll
            for (int k = 0; k < PART; ++k)
              if (i + k < left) rPart[k] = gNext[at + k];
          rX[r][v] = rPart.whole;
        }
'''),
    ("(bits >> (g + r) * WIDTH & ((1u << WIDTH) - 1)) != 0", "(bits >> (g + r) * WIDTH & (0xffffffffu >> (WARP - WIDTH))) != 0"),
    ])
    open(f'v7_w{v*4}.cu','w').write(t)
for v in (2,4,8): make(v)
