from pathlib import Path
H = Path(__file__).parent
def sub(s, a, b, n=1):
    assert s.count(a) == n, (s.count(a), a); return s.replace(a, b)
s = (H / "n_old.cu").read_text()
ASK = '''// A word of the layout that stands where it is asked for: the compiler would have it stand where it is used, behind a wait for the chunk's numbers.
ROOFTILE_DEVICE long long ask(const long long* g) {
#ifdef ROOFTILE_SIMULATOR
  return *g;
#else
  long long x;
  asm volatile("ld.global.nc.b64 %0, [%1];" : "=l"(x) : "l"(g));
  return x;
#endif
}

'''
a = s.index("  Chunk c{};"); b = s.index("  let_next_stand_by();")
t = s[:a] + s[b:]
t = sub(t, "template <typename T, int VECS, int THREADS>", ASK + "constexpr int MOST = 512;  // tensors whose places a block has at hand\n\ntemplate <typename T, int VECS, int THREADS>")
t = sub(t, "  look_up();\n  while (number < chunks) {\n    const long long first = c.first + threadIdx.x * WIDTH, size = c.size;\n    const T* gFrom = gX;\n", '''  long long packed = number < chunks ? ask(gLayout + count + number) : 0;
  const bool few = count <= MOST;
  __shared__ long long sSize[MOST], sPlace[MOST];
  if (few) {
    for (int t = threadIdx.x; t < count; t += THREADS) sSize[t] = gLayout[t], sPlace[t] = gTable[t];
    __syncthreads();
  }
  while (number < chunks) {
    const int t = int(packed >> 32);
    const long long first = (packed & 0xffffffffll) * chunk + threadIdx.x * WIDTH, size = few ? sSize[t] : __ldg(gLayout + t);
    const T* gFrom = reinterpret_cast<const T*>(few ? sPlace[t] : __ldg(gTable + t));
''')
t = sub(t, "    number += gridDim.x;\n    look_up();\n", "    number += gridDim.x;\n    if (number < chunks) packed = ask(gLayout + count + number);\n")
(H / "n_sm.cu").write_text(t)
# early look-ups alone: all three words by volatile loads, no shared memory
u = sub(s, "template <typename T, int VECS, int THREADS>", ASK + "template <typename T, int VECS, int THREADS>")
u = sub(u, '''  Chunk c{};
  const T* gX = nullptr;
  const auto look_up = [&]() {
    if (number >= chunks) return;
    c = chunk_of(gLayout, count, number, chunk);
    gX = tensor_of<const T>(gTable, c.t);
  };
''', "")
u = sub(u, "  look_up();\n  while (number < chunks) {\n    const long long first = c.first + threadIdx.x * WIDTH, size = c.size;\n    const T* gFrom = gX;\n", '''  long long packed = number < chunks ? ask(gLayout + count + number) : 0;
  while (number < chunks) {
    const int t = int(packed >> 32);
    const long long first = (packed & 0xffffffffll) * chunk + threadIdx.x * WIDTH, size = ask(gLayout + t);
    const T* gFrom = reinterpret_cast<const T*>(ask(gTable + t));
''')
u = sub(u, "    number += gridDim.x;\n    look_up();\n", "    number += gridDim.x;\n    if (number < chunks) packed = ask(gLayout + count + number);\n")
(H / "n_ask.cu").write_text(u)
# and a whole chunk has no ends
v = sub(t, '''      const long long i = first + v * NEXT;
      if (i < size && i + WIDTH > size)
        for''', '''      const long long i = first + v * NEXT;
      if (!whole && i < size && i + WIDTH > size)
#pragma unroll 1
        for''')
v = sub(v, "    uint4 rX[VECS];\n", "    const bool whole = first - threadIdx.x * WIDTH + chunk <= size;  // the same for the block\n    uint4 rX[VECS];\n")
v = sub(v, "      rX[v] = {0, 0, 0, 0};\n      if (first", "      rX[v] = {0, 0, 0, 0};\n      if (whole || first")
(H / "n_whole.cu").write_text(v)
NOW = '''// load_global of policy.cuh that stands where it is asked for.
ROOFTILE_DEVICE void load_now(uint4& rX, const uint4* gX, Policy policy) {
#ifdef ROOFTILE_SIMULATOR
  rX = *gX;
#else
  asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(rX.x), "=r"(rX.y), "=r"(rX.z), "=r"(rX.w)
               : "l"(__cvta_generic_to_global(gX)), "l"(policy));
#endif
}

'''
def now(s, whole):
    s = sub(s, ASK, ASK + NOW)
    cond = "whole || " if whole else ""
    s = sub(s, f"      if ({cond}first + v * NEXT + WIDTH <= size) rX[v] = load_global(reinterpret_cast<const uint4*>(gFrom + first + v * NEXT), policy);", f"      if ({cond}first + v * NEXT + WIDTH <= size) load_now(rX[v], reinterpret_cast<const uint4*>(gFrom + first + v * NEXT), policy);")
    s = s.replace("gLayout + count + number)", "gNumbers + number)")
    s = sub(s, "  long long packed = ", "  const long long* gNumbers = gLayout + count + hidden_zero(threadIdx.x);  // or the compiler brings them to uniform registers, and waits for them at once\n  long long packed = ")
    if "for (int t = threadIdx.x" in s: s = sub(s, "    for (int t = threadIdx.x; t < count", "#pragma unroll 1\n    for (int t = threadIdx.x; t < count")
    return s
(H / "n_sm_now.cu").write_text(now(t, False))
(H / "n_ask_now.cu").write_text(now(u, False))
w = now(v, True)
(H / "n_whole_now.cu").write_text(w)
# without branches where a chunk is whole: one loop for whole chunks' loads and sums
a = w.index("    const bool whole ="); b = w.index("    sum += part;")
x = w[:a] + '''    const auto add = [&](auto whole) {
      constexpr bool WHOLE = decltype(whole)::value;
      uint4 rX[VECS];
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        if (!WHOLE) rX[v] = {0, 0, 0, 0};
        if (WHOLE || first + v * NEXT + WIDTH <= size) load_now(rX[v], reinterpret_cast<const uint4*>(gFrom + first + v * NEXT), policy);
      }
      number += gridDim.x;
      if (number < chunks) packed = ask(gNumbers + number);
      float part = 0.0f;
#pragma unroll
      for (int v = 0; v < VECS; ++v) {
        float rF[WIDTH];
        unpack<T>(rF, rX[v]);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) part += rF[k] * rF[k];
        const long long i = first + v * NEXT;
        if (!WHOLE && i < size && i + WIDTH > size)
#pragma unroll 1
          for (long long k = i; k < size; ++k) part += float(gFrom[k]) * float(gFrom[k]);
      }
      return part;
    };
    const float part = first - threadIdx.x * WIDTH + chunk <= size ? add(Whether<true>()) : add(Whether<false>());
''' + w[b:]
x = sub(x, "constexpr int MOST", "template <bool VALUE> struct Whether {\n  static constexpr bool value = VALUE;\n};\n\nconstexpr int MOST")
(H / "n_two.cu").write_text(x)
