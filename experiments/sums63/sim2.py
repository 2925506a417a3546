import sys, torch
from pathlib import Path
from rooftile.cuda import simulator
from rooftile.cuda.source import Source
from rooftile.ops.embedding import cuda_kernels as E
H = Path(__file__).resolve().parent
S = {p.stem: Source(p) for p in H.glob("*.cu")}
def sort(d): return lambda indices, to, padding, config: E._dealt(S[d], indices, to.shape[0], padding, config["warps"])
torch.manual_seed(0)
for m, v, n in ((300, 40, 67), (700, 500, 96), (400, 3, 64), (50, 900, 800)):
    for text in (0, 1):
        idx = (torch.rand(m).pow(4) * v).long() if text else torch.randint(0, v, (m,))
        idx[5] = -1 if False else idx[5]
        di, gi = torch.randint(-3, 4, (m, n)).bfloat16(), torch.randint(-3, 4, (v, n)).bfloat16()
        want = torch.zeros(v, n).index_add_(0, idx, di.float())
        for s, d, t, span in (("e_ahead", "d32", 4, 16), ("e_ahead", "d32", 3, 48), ("e_ahead", "d32", 1, 16)):
            with simulator.active(): got = E._balanced(S[s], sort(d))(di, idx, gi, -1, config={"tokens": t, "span": span, "warps": 8})
            print(s, m, v, n, text, t, torch.equal(got, want.bfloat16()), flush=True)
        for s, d, t, span in (("a_two", "d_now", 2, 16), ("a_two_ahead", "d_now", 2, 16), ("a_two_ahead", "d_now", 1, 16), ("a_two", "d_now", 2, 48)):
            to = gi.clone()
            with simulator.active(): E._accumulated(S[s], sort(d))(di, idx, to, -1, config={"tokens": t, "span": span, "warps": 8})
            print(s, m, v, n, text, t, torch.equal(to, (want + gi.float()).bfloat16()), flush=True)
