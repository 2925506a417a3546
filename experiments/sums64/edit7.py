from pathlib import Path
H = Path(__file__).parent
old = (H / "v7_old.cu").read_text()
def sub(s, a, b, n=1):
    assert s.count(a) == n, (s.count(a), a); return s.replace(a, b)
def place(s):  # numbers added in their place
    a = s.index("    float run[ROWS];  // what is open"); b = s.index("#pragma unroll\n    for (int g = 0; g < ROWS; g += GROUP) {")
    return s[:a] + '''    float run[ROWS];  // what is open behind a lane's numbers of a row, of these alone
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      run[r] = 0.0f;
#pragma unroll
      for (int v = 0; v < EACH; ++v) {
        float rF[PART];
        open(rF, rX[r][v], T(0.0f));
#pragma unroll
        for (int k = 0; k < PART; ++k) {
          const int i = v * PART + k;
          const bool cut = bits >> (r * WIDTH + i) & 1;
          if (cut) sLaid[w][(r * WARP + l) * WIDTH + i] = run[r];
          if (i > 0 && !cut) rF[k] += run[r];  // in its place: one instruction, where a sum that begins anew is two more
          run[r] = rF[k];
        }
        if constexpr (decltype(more)::value) load_behind(rX[r][v], gNext + r * WARP * WIDTH + v * PART, policy, run[r]);
      }
    }
''' + s[b:]
def stay(s):
    a = s.index("// x stays in registers."); b = s.index("template <bool VALUE> struct Whether")
    s = s[:a] + '''// x, the same in all lanes, stays in registers. What is made of parameters alone the assembler would make anew for every tile, of 64 bits in some twenty-five
// instructions; of what comes by a shuffle it knows nothing.
template <typename X> ROOFTILE_DEVICE void keep(X& x) { x = __shfl_sync(ALL_LANES, x, 0); }

''' + s[b:]
    s = sub(s, "  const int count = int(min((long long)tiles * SIZE, end - first));\n  keep(first);\n", "  int count = int(min((long long)tiles * SIZE, end - first));\n  keep(first), keep(count);\n")
    s = sub(s, "  const unsigned until = min(next - l + share, unsigned(E)), rows =", "  unsigned until = min(next - l + share, unsigned(E));\n  keep(until);\n  const unsigned rows =")
    return s
def marks(s):
    s = sub(s, "  unsigned* sMarks = sBits[w][0];\n", "")
    s = sub(s, "    const long long tile = first + here;\n", "    const long long tile = first + here;\n    unsigned *sMarks = sBits[w][here / SIZE & 1], *sOther = sBits[w][here / SIZE & 1 ^ 1];\n")
    s = sub(s, "    unsigned* sOther = sBits[w][0] + (sMarks - sBits[w][0] ^ WARP);\n", "")
    s = sub(s, "    sMarks = sOther, here += SIZE;\n", "    here += SIZE;\n")
    return s
def spec(s):
    return s
(H / "v7_place.cu").write_text(place(old))
(H / "v7_stay.cu").write_text(marks(stay(old)))
(H / "v7_both.cu").write_text(marks(stay(place(old))))
(H / "v7_place_keep.cu").write_text(marks(place(old)))
