"""sums63, first: what segment_sum's walk over rows of one number waits for, its runs' search and join, gemv's flat matrices with x kept in registers.
usage: PYTHONPATH=src python3 .gpu/sums63/lab.py [dry]
Predicted, H200 (bytes over 4.3 TB/s and what waits): N1 now 85.5; v7_end (the look whether segments have numbers is used at a tile's end, a trip to the L2 or memory
less in 11 of 21 tiles) 79 to 81; v7_opaque the same, 25 of 600 instructions a tile less, 1 us; c32_end 79 (430 instructions, 17 shuffles for 66); v7_none, c32_none: the bound.
N128 half 153.8: v6_join 149 (512 KB of partial rows through one multiprocessor, 8 turns; four and 2 turns), v6_both 147; f32 144.1: v6_near 143, both 142; bf16 80.4: near 79, both 78.5.
gemv 16 x 4M 45.1: kept 40 (201 MB from the L2 to 142; rows in the order of addresses)."""
import multiprocessing, sys, time
from pathlib import Path
import torch
H = Path(__file__).resolve().parent
DRY = sys.argv[1:2] == ["dry"]
F32, BF = torch.float32, torch.bfloat16
C = {F32: "float", BF: "__nv_bfloat16", torch.float16: "__half"}
N1 = ["v7", "v7_end", "v7_opaque", "v7_none", "c32", "c32_end", "c32_none"]
N128 = ["v6", "v6_near", "v6_join", "v6_both", "v6_roll"]
KEPT = [(256, 6, 3), (256, 8, 2), (256, 4, 4), (512, 6, 1)]
FLAT = [(16, 4194304, BF), (16, 2097152, F32), (8, 4194304, BF), (4, 8388608, BF), (2, 16777216, BF), (64, 1048576, BF), (128, 524288, BF), (16, 1048576, BF)]
def jobs():
    out = [(n, f"chunks<float, long long, 256>") for n in N1] + [(n, "join<float, long long>") for n in N1] + [("read", f"read<{h}>") for h in (0, 1, 2)]
    for n in N128:
        for t, w, l, r in ((F32, 4, 32, 8), (BF, 8, 16, 4)):
            out += [(n, f"runs<{C[t]}, long long, {w}, {l}, {r}>"), (n, f"join<{C[t]}, long long, 4>")]
    out += [("kept", f"slices<{C[t]}, {a}, {b}, {c}>") for t in (F32, BF) for a, b, c in KEPT] + [("kept", f"join<{C[t]}>") for t in (F32, BF)]
    return out
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
        for bad in pool.imap(warm, sorted(jobs(), key=lambda j: "chunks" not in j[1]), 1):
            if bad: print(bad, flush=True)
    print(f"compiled {time.time() - t0:.0f} s", flush=True)
    if DRY: sys.exit()
    from rooftile.core import timing
    from rooftile.cuda.launch import launch
    from rooftile.cuda.source import Source
    from rooftile.ops._shared.launch import cdiv, power_of_2, processors, rows
    from rooftile.ops.gemv import cuda_kernels as G
    from rooftile.ops.segment_sum.cuda_kernels import wide
    S = {p.stem: Source(p) for p in H.glob("*.cu")}
    D = torch.device("cuda", 0)
    def numbers(s, x, offsets, block=256, per_sm=24):
        m, e = x.shape[0], offsets.numel() - 1
        out, every, warps, most = x.new_empty((e, 1)), cdiv(m, 1024), block // 32, per_sm * processors(x)
        tiles = max(1, cdiv(every, most))
        blocks = max(cdiv(every, tiles * warps), min(cdiv(e, block), cdiv(most, warps)))
        share = cdiv(e, blocks * warps)
        head, opened = x.new_empty(blocks, dtype=F32), x.new_empty((blocks, 4), dtype=torch.int32)
        t = f"{C[x.dtype]}, long long"
        launch(S[s], f"chunks<{t}, {block}>", blocks, block, out, head, opened, x, offsets, m, e, tiles, share, shared=warps * (2 * 4608 + 128) if s[:3] == "c32" else 0)
        launch(S[s], f"join<{t}>", cdiv(blocks, 128), 128, out, head, opened, offsets, m, e, blocks, share * warps)
        return out
    def runs(s, x, offsets):
        x, m, n, stride = rows(x)
        r, most, cut = (4, 1024, 0) if x.dtype == BF else (8, 2048, 2)
        e = offsets.numel() - 1
        out = x.new_empty((e, n)); width, lanes, strips = wide(x, n, stride); groups = 256 // lanes
        chunk = power_of_2(max(16, cdiv(m, groups * most))); count = max(1, cdiv(m, groups * chunk))
        long = max(0, count - cut * processors(x)) if chunk >= 64 else count
        count = long + cdiv(max(0, m - long * groups * chunk), groups * chunk // 4)
        partial, opened = x.new_empty((2 * count, n), dtype=F32), offsets.new_empty((count, 2), dtype=torch.int64)
        t = f"{C[x.dtype]}, long long"
        launch(S[s], f"runs<{t}, {width}, {lanes}, {r}>", count * strips, 256, out, partial, opened, x, offsets, m, e, n, stride, strips, chunk.bit_length() - 1, long)
        grid = (max(cdiv(count, 64), cdiv(e, 512)), cdiv(n, 32)) if s in ("v6_join", "v6_both", "v6_roll") else max(cdiv(count, 16), cdiv(e, 512))
        launch(S[s], f"join<{t}, 4>", grid, 512, out, partial, opened, offsets, m, e, n, count)
        return out
    def kept(a, x, threads, each, per, waves=1):
        m, k = a.shape
        vectors = k * a.itemsize // 16
        waves = max(1, cdiv(vectors, per * processors(a) * threads * each))
        share = cdiv(cdiv(vectors, waves * per * processors(a)), 8) * 8
        blocks = cdiv(vectors, share)
        partial, out = a.new_empty((m, blocks), dtype=F32), a.new_empty(m)
        launch(S["kept"], f"slices<{C[a.dtype]}, {threads}, {each}, {per}>", blocks, threads, partial, a, x, m, k, a.stride(0), share)
        launch(S["kept"], f"join<{C[a.dtype]}>", m, 128, out, partial, blocks)
        return out
    def show(name, calls, budget=60):
        r = timing.compare(calls, D, budget_ms=budget); t = {k: u.us for k, u in r.timings.items()}
        print(name, f"noise {r.noise:.3f}", "; ".join(f"{k} {u:.1f} ({t['copy']/u:.3f})" for k, u in sorted(t.items(), key=lambda i: i[1])), flush=True)
    def copy(n):
        a, b = (torch.empty(n // 2, device=D, dtype=torch.uint8).random_() for _ in range(2))
        return lambda: b.copy_(a)
    def cuts(m, e): return torch.cat([torch.zeros(1, device=D, dtype=torch.int64), torch.randint(0, m + 1, (e - 1,), device=D).sort().values, torch.full((1,), m, device=D)])
    torch.manual_seed(0)
    m, e = 1 << 26, 1 << 20
    x, o = torch.randn(m, 1, device=D), cuts(m, e)
    xi = torch.randint(-9, 10, (m, 1), device=D).float()
    one = torch.tensor([0, m], device=D)
    want = torch.zeros(e, device=D, dtype=torch.float64).index_add_(0, torch.repeat_interleave(torch.arange(e, device=D), o.diff()), xi[:, 0].double()).float()[:, None]
    for s in N1:
        got = numbers(s, xi, o)
        if not torch.equal(got, want): print("WRONG", s, int((got != want).sum()), "of them empty", int(((got != want)[:, 0] & (o.diff() == 0)).sum()))
    calls = {"copy": copy(m * 4 + e * 12), **{s: (lambda s=s: numbers(s, x, o)) for s in N1}, "v7 E=1": lambda: numbers("v7", x, one), "v7_end E=1": lambda: numbers("v7_end", x, one), "c32_end E=1": lambda: numbers("c32_end", x, one), "sum": lambda: x.sum()}
    buf = torch.empty(1 << 17, device=D)
    def read(h, blocks, tiles): launch(S["read"], f"read<{h}>", blocks, 256, buf, x, m, tiles)
    calls |= {"read stretches": lambda: read(0, 391, 21), "read in turn": lambda: read(1, 396, 0), "read blocks of 128 KB": lambda: read(2, 2048, 4), "read blocks of 32 KB": lambda: read(2, 8192, 1), "read long blocks": lambda: read(2, 391, 21)}
    show("N1 f32", calls)
    del x, xi, want
    for dt, half in ((F32, False), (BF, False), (F32, True)):
        m, e = 1 << 20, 16384
        x, o = torch.randn(m, 128, device=D, dtype=dt), cuts(m, e)
        if half: o = torch.cat([o[:1], o[1:].clamp_min(m // 2)])
        xi = torch.randint(-9, 10, (m, 128), device=D).to(dt)
        want = torch.zeros(e, 128, device=D, dtype=torch.float64).index_add_(0, torch.repeat_interleave(torch.arange(e, device=D), o.diff()), xi.double()).to(dt)
        for s in N128:
            got = runs(s, xi, o)
            if not torch.equal(got, want): print("WRONG", s, dt, half, int((got != want).any(1).sum()))
        one = torch.tensor([0, m], device=D)
        calls = {"copy": copy((m + e) * 128 * dt.itemsize + e * 8), **{s: (lambda s=s: runs(s, x, o)) for s in N128}}
        calls |= {f"{s} E=1": (lambda s=s: runs(s, x, one)) for s in ("v6", "v6_both", "v6_roll")}
        show(f"N128 {dt} half={half}", calls)
        del x, xi, want
    for m, k, dt in FLAT:
        a, x = torch.randn(m, k, device=D, dtype=dt), torch.randn(k, device=D, dtype=dt)
        ai, xi = torch.randint(-3, 4, (m, k), device=D).to(dt), torch.randint(-3, 4, (k,), device=D).to(dt)
        want = torch.stack([(r.double() * xi.double()).sum() for r in ai]).to(dt)
        old = lambda c: G._split(G._LAST)(a, x, config=c)
        calls = {"copy": copy((m * k + k + m) * dt.itemsize), "split 2,4": lambda: old(G._SPLIT[2])}
        if m <= 16: calls["split 4,2"] = lambda: old(G._SPLIT[0])
        for v in KEPT:
            if not torch.equal(kept(ai, xi, *v), want): print("WRONG", m, k, dt, v, kept(ai, xi, *v)[:4], want[:4])
            calls[f"kept {v}"] = lambda v=v: kept(a, x, *v)
        show(f"gemv {m} x {k} {dt}", calls)
        del a, x, ai, xi
    print(f"all {time.time() - t0:.0f} s", flush=True)
