from pathlib import Path
H = Path(__file__).parent
def sub(s, a, b, n=1):
    assert s.count(a) == n, (s.count(a), a); return s.replace(a, b)
s = (H / "v7_else.cu").read_text()
a = sub(s, "  unsigned until = min(next - l + share, unsigned(E));\n  keep(until);\n  const unsigned rows =", "  const unsigned until = min(next - l + share, unsigned(E)), rows =")
(H / "v7_a.cu").write_text(a)
# parity kept as an offset in words
b = sub(s, "    unsigned *sMarks = sBits[w][here / SIZE & 1], *sOther = sBits[w][here / SIZE & 1 ^ 1];\n", "    unsigned *sMarks = sBits[w][turn], *sOther = sBits[w][turn ^ 1];\n")
b = sub(b, "  int here = 0;\n", "  int here = 0, turn = 0;\n"); b = sub(b, "    here += SIZE;\n", "    here += SIZE, turn ^= 1;\n")
(H / "v7_b.cu").write_text(b)
# first moves on, count is what is left
c = sub(s, "    const long long tile = first + here;\n", "    const long long tile = first;\n")
c = sub(c, "    unsigned *sMarks = sBits[w][here / SIZE & 1], *sOther = sBits[w][here / SIZE & 1 ^ 1];\n", "    unsigned *sMarks = sBits[w][left / SIZE & 1], *sOther = sBits[w][left / SIZE & 1 ^ 1];\n")
c = sub(c, "decltype(more)::value ? SIZE : min(count - here, SIZE)", "decltype(more)::value ? SIZE : min(left, SIZE)")
c = sub(c, "    here += SIZE;\n", "    first += SIZE, left -= SIZE;\n"); c = sub(c, "  int here = 0;\n", "  int left = count;\n")
c = sub(c, "  while (count - here >= 2 * SIZE) step(Whether<true>());\n  while (here < count) {\n    const int left = count - here;\n", "  while (left >= 2 * SIZE) step(Whether<true>());\n  while (left > 0) {\n")
(H / "v7_c.cu").write_text(c)
d = sub(c, "  unsigned until = min(next - l + share, unsigned(E));\n  keep(until);\n  const unsigned rows =", "  const unsigned until = min(next - l + share, unsigned(E)), rows =")
(H / "v7_d.cu").write_text(d)
