"""Variants of sum_norm_v3_pipeline.cu, each an edit of it. packed: the weight held as it came, opened where used. drawn: a row's mask drawn before its data is
waited for, a bit an element. h/k/s: HELD, KEPT, STRAIGHT said outright. few: registers that the mask no longer wants beside the sums are counted as room."""
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
from mkpair import pair
H = Path(__file__).resolve().parent
SRC = Path("src/rooftile/ops/_shared/cuda/sum_norm_v3_pipeline.cu")
def swap(s, *pairs):
    for a, b in pairs:
        assert s.count(a) == 1, (s.count(a), a)
        s = s.replace(a, b)
    return s
def packed(s):
    return swap(s,
        ("rW[HELD ? HELD : 1][WIDTH], ", ""),
        ("""#pragma unroll
  for (int v = 0; v < HELD; ++v) LAYER ? rAsked[v].open(rW[v]) : rAsked[v].open(rW[v], offset);
""", ""),
        ("""#pragma unroll
      for (int k = 0; k < WIDTH; ++k) rF[k] = rW[v % (HELD ? HELD : 1)][k];
""", """      LAYER ? rAsked[v % (HELD ? HELD : 1)].open(rF) : rAsked[v % (HELD ? HELD : 1)].open(rF, offset);
"""),
        ("rAway)[WIDTH] = rS[v < KEPT ? v : KEPT];\n      if (v >= KEPT) {", """rAway)[WIDTH] = rS[v < KEPT ? v : KEPT];
      if (v < HELD)
#pragma unroll
        for (int i = 0; i < Parameters<W, WIDTH>::PARTS; ++i) rAsked[v % (HELD ? HELD : 1)].part[i].x ^= zero, rAsked[v % (HELD ? HELD : 1)].part[i].y ^= zero, rAsked[v % (HELD ? HELD : 1)].part[i].z ^= zero, rAsked[v % (HELD ? HELD : 1)].part[i].w ^= zero;
      if (v >= KEPT) {"""))
def drawn(s):
    return swap(s,
        ("    copy_wait<STAGES - 1>();  // this row", """    unsigned mask[(VECS * WIDTH + 31) / 32] = {};
    if constexpr (Branch::DROPS) {
#pragma unroll
      for (int v = 0; v < VECS; ++v)
#pragma unroll
        for (int k = 0; k < WIDTH; k += 4) {
          const Words w = philox((row + v * NEXT + k) / 4, branch.seed);
          const int at = v * WIDTH + k;
          mask[at / 32] |= (w.a >= branch.threshold ? 1u << at % 32 : 0u) | (w.b >= branch.threshold ? 2u << at % 32 : 0u) |
                           (w.c >= branch.threshold ? 4u << at % 32 : 0u) | (w.d >= branch.threshold ? 8u << at % 32 : 0u);
        }
#ifndef ROOFTILE_SIMULATOR
#pragma unroll
      for (int i = 0; i < (VECS * WIDTH + 31) / 32; ++i) asm volatile("" : "+r"(mask[i]));
#endif
    }
    copy_wait<STAGES - 1>();  // this row"""),
        ("        branch(rAway, row + v * NEXT);\n", """        if constexpr (Branch::DROPS)
#pragma unroll
          for (int k = 0; k < WIDTH; ++k) rAway[k] = mask[(v * WIDTH + k) / 32] >> (v * WIDTH + k) % 32 & 1 ? rAway[k] * branch.scale : 0.0f;
"""))
def said(s, h=None, k=None, straight=None):
    import re
    if h is not None: s = re.sub(r"HELD = WEIGHT \? .*?, KEPT", f"HELD = WEIGHT ? upto<VECS>({h}) : 0, KEPT", s)
    if k is not None: s = re.sub(r"KEPT = upto<VECS>\(.*\);", f"KEPT = upto<VECS>({k});", s)
    if straight is not None: s = re.sub(r"constexpr bool STRAIGHT = .*;", f"constexpr bool STRAIGHT = FULL && {'true' if straight else 'false'};", s)
    return s
def all_of():
    head = SRC.read_text()
    return {
        "head": head,
        "s1": said(head, None, None, 1),
        "drawn": drawn(head), "drawn_s1": said(drawn(head), None, None, 1), "drawn_k1s1": said(drawn(head), 0, 1, 1), "drawn_h2": said(drawn(head), 2, 0, 0), "drawn_h1s1": said(drawn(head), 1, 0, 1),
        "packed": said(packed(head), 2, 0, 0), "packed_s1": said(packed(head), 2, 0, 1),
        "pair": pair(head, False), "pair_drawn": pair(head, True),
        "both": said(packed(drawn(head)), 2, 0, 0), "both_s1": said(packed(drawn(head)), 2, 0, 1), "both_k1s1": said(packed(drawn(head)), 2, 1, 1),
    }
def write():
    for n, s in all_of().items(): (H / f"{n}.cu").write_text(s)
if __name__ == "__main__": write(); print(*all_of())
