"""gated_backward at Llama's shape (M 16384, K 2048, F 8192): what bounds it? 923 us in the step = 595 TFLOP/s, gated_forward 718 on the same walk.
Two numbers: 550 GFLOP (at 720: 764 us), 1.41 GB (336 us at 4.2 TB/s). 4096 tiles, 31.03 of a multiprocessor; a tile of the forward takes 24.3 us, of this 28.8.
By K (64: the third warpgroup alone), and with loads, stores or both left out; in bursts at the board's power, and short."""
import time, torch, statistics, collections, sys
from pathlib import Path
from rooftile.ops.mlp import cuda_kernels as m
from rooftile.cuda.source import Source
H = Path(__file__).resolve().parent
text = m.V1.text
def edit(name, *pairs):
    t = text
    for a, b in pairs:
        assert t.count(a) == 1, (name, a, t.count(a)); t = t.replace(a, b)
    p = H / f"{name}.cu"; p.write_text(t); return Source(p)
NOLOAD = ("gFrom + p * F, r < from.rows)", "gFrom + p * F, r < from.rows - (1 << 30))")
NOH = ("        __stwb(reinterpret_cast<uint4*>(gTo), h);\n      }\n      gDgate", "      }\n      if (up[0] == 12345.678f) __stwb(reinterpret_cast<uint4*>(gTo), h);\n      gDgate")
NOST = ("      if (there) {\n        __stwb(reinterpret_cast<uint4*>(gDgate), dgate);", "      if (there && up[0] == 12345.678f) {\n        __stwb(reinterpret_cast<uint4*>(gDgate), dgate);")
TOG = ("AHEAD = 8, TOGETHER = 2;", "AHEAD = 8, TOGETHER = 1;")
A16 = ("AHEAD = 8, TOGETHER = 2;", "AHEAD = 16, TOGETHER = 2;")
A16T = ("AHEAD = 8, TOGETHER = 2;", "AHEAD = 16, TOGETHER = 1;")
V = {"together1": edit("together1", TOG), "ahead16": edit("ahead16", A16), "ahead16t": edit("ahead16t", A16T), "base": m.V1, "noload": edit("noload", NOLOAD), "noh": edit("noh", NOH), "nostore": edit("nostore", NOST), "nothing": edit("nothing", NOLOAD, NOST)}
if __name__ == "__main__":
    torch.manual_seed(0)
    M, K, F = 16384, 2048, 8192
    bf = dict(device="cuda", dtype=torch.bfloat16)
    x, g = torch.randn(M, K, **bf), torch.randn(M, K, **bf) * .01
    w1, w2 = torch.randn(2 * F, K, **bf) * .02, torch.randn(K, F, **bf) * .02
    cfg = m.GATED[0]
    pre, h = m.gated(x, w1, "silu", True, cfg)
    def run(name, k=K, cfg=cfg):
        a, b = g[:, :k].contiguous(), w2[:k]
        def f():
            m.V1 = V[name]; m.AHEAD = 4 * (16 if "16" in name else 8) * 32 * 16; m.gate_sloped(a, b, pre, "silu", cfg)
        return f
    runs = {("base", k): run("base", k) for k in (64, 512, 1024, 1536, 2048)}
    s32 = lambda s, lag: {"BLOCK_N": 256, "BLOCK_K": 32, "STAGES": s, "LAG": lag, "GROUP": 16}
    for n, c in (("base", s32(6, 2)), ("base", s32(5, 2)), ("ahead16", s32(5, 2)), ("ahead16t", s32(5, 2)), ("ahead16", s32(5, 1))): runs[n + " 32 %d %d" % (c["STAGES"], c["LAG"]), 2048] = run(n, K, c)
    for n in V:
        if "16" in n: continue
        if n != "base": runs[n, 2048] = run(n); runs[n, 64] = run(n, 64)
    runs["fwd", 2048] = lambda: (setattr(m, "V1", V["base"]), m.gated(x, w1, "silu", True, cfg))
    runs["fwd not kept", 2048] = lambda: (setattr(m, "V1", V["base"]), m.gated(x, w1, "silu", False, cfg))
    runs["cublas dh", 2048] = lambda: torch.mm(g, w2)
    runs["cublas pre", 2048] = lambda: torch.mm(x, w1.t())
    def burst(f, s):
        f(); torch.cuda.synchronize(); t = time.perf_counter(); n = 0
        while True:
            for _ in range(10): f()
            torch.cuda.synchronize(); n += 10
            if time.perf_counter() - t > s: return (time.perf_counter() - t) / n * 1e6
    a0 = None
    for n in ("base", "together1", "ahead16", "ahead16t"):
        m.V1, m.AHEAD = V[n], 4 * (16 if "16" in n else 8) * 32 * 16
        o = m.gate_sloped(g, w2, pre, "silu", s32(5, 2) if "16" in n else cfg)
        if a0 is None: a0 = o
        print(n, "right" if all(torch.equal(p, q) for p, q in zip(a0, o)) else "WRONG")
    for f in runs.values(): f()
    T = collections.defaultdict(list)
    for r in range(2):
        for k, f in runs.items(): T[k].append(burst(f, 0.25))
    for k in runs: print(k, [round(v, 1) for v in T[k]], flush=True)
