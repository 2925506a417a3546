"""sums63, second: embedding's gradient and the gradient that is added to. usage: PYTHONPATH=src python3 .gpu/sums63/lab2.py [dry]
Predicted, H200: ahead (tokens' gradients asked for beside the borders of their rows: a trip to the L2 less in each warp, all of one wave) 0.7 us of 47.5; 112 (sums of
112 registers and a sort of 32: both blocks of a multiprocessor clear rows while the sort runs, where the second found no registers) 2; added to, two tokens with what is
there at a time (8 trips for 16) 4 of 48.4, f32 5 of 81.8."""
import multiprocessing, sys, time
from pathlib import Path
import torch
H = Path(__file__).resolve().parent
DRY = sys.argv[1:2] == ["dry"]
F32, BF = torch.float32, torch.bfloat16
C = {F32: "float", BF: "__nv_bfloat16"}
W = [("e_now", "d_now", 4, 16), ("e_now", "d32", 4, 16), ("e_ahead", "d_now", 4, 16), ("e_112", "d32", 4, 16), ("e_both", "d32", 4, 16), ("e_both", "d32", 3, 16), ("e_ahead", "d32", 2, 16), ("e_now", "d32", 2, 16)]
A = [("e_now", "d_now", 1, 16), ("a_two", "d_now", 2, 16), ("a_two_ahead", "d_now", 1, 16), ("a_two_ahead", "d_now", 2, 16), ("a_two", "d_now", 2, 48)]
def jobs():
    out = {(d, i) for d in ("d_now", "d32") for i in ("deal<8>", "sort<8>")}
    for t, w in ((F32, 4), (BF, 8)):
        for s, d, n, _ in W:
            for v in (3, 4):
                if v == 3 or n == 2: out.add((s, f"sums<{C[t]}, int, int, {w}, {v}, {n}>"))
            out.add((s, f"join<{C[t]}, int, 4>"))
        for s, d, n, _ in A:
            for v in (3, 4): out.add((s, f"sums<{C[t]}, int, int, {w}, {v}, {n}, true>"))
            out.add((s, f"join<{C[t]}, int, 4, true>"))
    return sorted(out)
def warm(job):
    from rooftile.cuda.compile import compiled
    from rooftile.cuda.source import Source
    try:
        c = compiled(Source(H / f"{job[0]}.cu"), job[1], "sm_90a")
        return f"{job} spills {c.spill_bytes}" if c.spill_bytes else None
    except Exception as e: return f"{job} {type(e).__name__} {str(e)[:300]}"
if __name__ == "__main__":
    t0 = time.time()
    with multiprocessing.get_context("spawn").Pool(2 if DRY else 14) as pool:
        for bad in pool.imap(warm, jobs(), 1):
            if bad: print(bad, flush=True)
    print(f"compiled {time.time() - t0:.0f} s", flush=True)
    if DRY: sys.exit()
    from rooftile.core import timing
    from rooftile.cuda.source import Source
    from rooftile.ops.embedding import cuda_kernels as E
    S = {p.stem: Source(p) for p in H.glob("*.cu")}
    D = torch.device("cuda", 0)
    def sort(d): return lambda indices, to, padding, config: E._dealt(S[d], indices, to.shape[0], padding, config["warps"])
    def wide(v, dout, idx, w): return E._balanced(S[v[0]], sort(v[1]))(dout, idx, w, -1, config={"tokens": v[2], "span": v[3], "warps": 8})
    def added(v, dout, idx, g): E._accumulated(S[v[0]], sort(v[1]))(dout, idx, g, -1, config={"tokens": v[2], "span": v[3], "warps": 8})
    def show(name, calls):
        r = timing.compare(calls, D, budget_ms=60); t = {k: u.us for k, u in r.timings.items()}
        print(name, f"noise {r.noise:.3f}", "; ".join(f"{k} {u:.1f} ({t['copy']/u:.3f})" for k, u in sorted(t.items(), key=lambda i: i[1])), flush=True)
    def copy(n):
        a, b = (torch.empty(n // 2, device=D, dtype=torch.uint8).random_() for _ in range(2))
        return lambda: b.copy_(a)
    torch.manual_seed(0)
    zipf = lambda m, v: (torch.rand(m, device=D).pow(8) * v).long().clamp(max=v - 1)
    for m, v, n, dt, text in ((32768, 50304, 768, BF, 0), (32768, 50304, 768, F32, 0), (32768, 50304, 768, BF, 1), (16384, 128256, 4096, BF, 0)):
        idx = zipf(m, v) if text else torch.randint(0, v, (m,), device=D)
        w, dout = torch.empty(v, n, device=D, dtype=dt), torch.randn(m, n, device=D, dtype=dt)
        di = torch.randint(-3, 4, (m, n), device=D).to(dt)
        want = torch.zeros(v, n, device=D).index_add_(0, idx, di.float()).to(dt)
        some = [x for x in W if n == 768 or x[2] == 2]
        calls = {"copy": copy((m + v) * n * dt.itemsize + m * 8)}
        for x in some:
            if not torch.equal(wide(x, di, idx, w), want): print("WRONG", x, m, v, n, dt, text)
            calls[f"{x}"] = lambda x=x: wide(x, dout, idx, w)
        del want, di
        show(f"backward {m} {v} {n} {dt} text={text}", calls)
    for m, v, n, dt, text in ((32768, 50304, 768, BF, 0), (32768, 50304, 768, F32, 0), (16384, 128256, 2048, BF, 0), (32768, 50304, 768, BF, 1), (8192, 32000, 4096, BF, 0)):
        idx = zipf(m, v) if text else torch.randint(0, v, (m,), device=D)
        g, dout = torch.randn(v, n, device=D).to(dt), torch.randn(m, n, device=D, dtype=dt)
        di, gi = torch.randint(-3, 4, (m, n), device=D).to(dt), torch.randint(-3, 4, (v, n), device=D).to(dt)
        want = torch.zeros(v, n, device=D).index_add_(0, idx, di.float()).add_(gi.float()).to(dt)
        calls = {"copy": copy((m + 2 * len(idx.unique())) * n * dt.itemsize + m * 8)}
        for x in A:
            to = gi.clone(); added(x, di, idx, to)
            if not torch.equal(to, want): print("WRONG", x, m, v, n, dt, text)
            calls[f"{x}"] = lambda x=x: added(x, dout, idx, g)
        del want, di, gi
        show(f"added {m} {v} {n} {dt} text={text}", calls)
    print(f"all {time.time() - t0:.0f} s", flush=True)
