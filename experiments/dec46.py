"""Eight query tokens over (16, 8192): configs of attention_decode's Triton kernel side by side, beside a copy of the keys and values."""
import random, statistics, sys, torch
from rooftile.ops.attention_decode import triton_kernels as t
b, T, h, g, d, s = 16, 8, 32, 8, 128, 8192
torch.manual_seed(0)
r = lambda *x: torch.randn(*x, device="cuda").bfloat16()
q, k, v = r(b, T, h, d), r(b, s, g, d), r(b, s, g, d); n = torch.full((b,), s, dtype=torch.int32, device="cuda")
C = {"ONE": t.ONE, "TWO": t.TWO, "FOUR": t.FOUR, "FOUR_8": t.FOUR_8}
for m, bn, p, w, st in ((32, 64, 2, 4, 4), (32, 64, 3, 4, 3), (32, 64, 2, 2, 3), (32, 64, 3, 2, 3), (32, 128, 1, 4, 3), (32, 32, 4, 2, 4), (32, 64, 2, 8, 3), (32, 128, 2, 4, 2), (16, 128, 1, 8, 3), (16, 64, 2, 4, 3)):
    C[f"{m},{bn},{p},{w},{st}"] = t._tiles(m, bn, p, w, st)
run = lambda c: t.attention_decode(q, k, v, n, None, None, d**-0.5, 0, 0.0, config=c)
ref, ok = run(t.ONE)[0].float(), {}
def tm(f, reps=8):
    f(); a, e = (torch.cuda.Event(enable_timing=True) for _ in "ab"); a.record()
    for _ in range(reps): f()
    e.record(); e.synchronize(); return a.elapsed_time(e) / reps * 1e3
for name, c in list(C.items()):
    try: ok[name] = (run(c)[0].float() - ref).abs().max().item()
    except Exception as error: print(name, type(error).__name__, str(error)[:80]); del C[name]
k2, v2 = torch.empty_like(k), torch.empty_like(v)
half = lambda: k2[:8].copy_(k[:8]) if False else (k2.view(-1)[: k.numel() // 2].copy_(k.view(-1)[: k.numel() // 2]), v2.view(-1)[: v.numel() // 2].copy_(v.view(-1)[: v.numel() // 2]))
F = {**{name: (lambda c=c: run(c)) for name, c in C.items()}, "copy": half}
R = {name: [] for name in F}
for i in range(10):
    todo = list(F); random.seed(i); random.shuffle(todo)
    for name in todo: R[name].append(tm(F[name]))
for name in sorted(F, key=lambda x: statistics.median(R[x])): print(f"{name:16} {statistics.median(R[name]):7.1f}  err {ok.get(name, 0):.1e}")
