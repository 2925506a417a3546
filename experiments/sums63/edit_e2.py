def two(s):
    for old, new in (
        ("constexpr bool TOGETHER = ADDED && TOKENS == 1;", "constexpr bool TOGETHER = ADDED && TOKENS <= 2;"),
        ("rX[TOKENS][VECTORS], rOld[VECTORS];", "rX[TOKENS][VECTORS], rOld[TOGETHER ? TOKENS : 1][VECTORS];"),
        ('''      if (TOGETHER && last >> l & 1) {
        const T* gRow = gDw + (long long)__shfl_sync(ALL_LANES, place.i_v, l) * N + i_n;
#pragma unroll
        for (int k = 0; k < VECTORS; ++k)
          if (i_n + k * WARP * WIDTH < N) load_global(rOld[k], gRow + k * WARP * WIDTH);
      }
''', '''      if constexpr (TOGETHER)
#pragma unroll
        for (int t = 0; t < TOKENS; ++t)
          if (l + t < stop && last >> (l + t) & 1) {
            const T* gRow = gDw + (long long)__shfl_sync(ALL_LANES, place.i_v, l + t) * N + i_n;
#pragma unroll
            for (int k = 0; k < VECTORS; ++k)
              if (i_n + k * WARP * WIDTH < N) load_global(rOld[t][k], gRow + k * WARP * WIDTH);
          }
'''),
        ("rSum[k][c] += float(rOld[k][c]);", "rSum[k][c] += float(rOld[t][k][c]);"),
    ):
        assert s.count(old) == 1, old
        s = s.replace(old, new)
    return s
open('a_two.cu','w').write(two(open('e_now.cu').read()))
open('a_two_ahead.cu','w').write(two(open('e_ahead.cu').read()))
