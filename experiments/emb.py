import functools, torch, sys
from rooftile.core import timing
from rooftile.core.kernel import OPS
import rooftile
dev = torch.device("cuda"); torch.manual_seed(0)
B = OPS["embedding_backward"]
def zipf(m, v): 
    w = 1.0 / torch.arange(1, v + 1, dtype=torch.float64); return torch.multinomial(w, m, replacement=True).to(dev)
def text(m, v):
    from rooftile.training.text import standard_library
    import numpy as np
    return torch.from_numpy(np.frombuffer(standard_library(2 * m + 2000), dtype="<u2")[1000:1000 + m].astype(np.int64) % v).to(dev)
uni = lambda m, v: torch.randint(0, v, (m,), device=dev)
for name, m, v, n, dt, draw in (("gpt2", 32768, 50304, 768, torch.bfloat16, uni), ("gpt2 zipf", 32768, 50304, 768, torch.bfloat16, zipf), ("gpt2 text", 32768, 50304, 768, torch.bfloat16, text), ("gpt2 f32", 32768, 50304, 768, torch.float32, uni), ("llama", 16384, 128256, 4096, torch.bfloat16, uni), ("gpt2 one half", 32768, 50304, 768, torch.bfloat16, lambda m, v: torch.where(torch.rand(m, device=dev) < .5, 7, uni(m, v))), ("one", 32768, 600, 768, torch.bfloat16, lambda m, v: torch.full((m,), 5, device=dev))):
    i = draw(m, v); d = torch.randint(-4, 5, (m, n), device=dev).to(dt); w = torch.empty(v, n, dtype=dt, device=dev)
    vs = {}
    k5, k7 = B.kernel("cuda.v5_dealt"), B.kernel("cuda.v7_added")
    call = {"dout": d, "indices": i, "weight": w, "padding_idx": -1}
    c5 = k5.heuristic(call); vs["v5"] = functools.partial(k5.bound(c5), d, i, w, -1)
    for c in k7.configs: vs["v7 " + "/".join(map(str, c.values()))] = functools.partial(k7.bound(c), d, i, w, -1)
    want = torch.zeros(v, n, device=dev).index_add_(0, i, d.float()).to(dt)
    for k, f in list(vs.items()):
        try:
            ok = torch.equal(f(), want)
            if not ok: print("WRONG", name, k)
        except Exception as e: print("ERR", name, k, str(e)[:200]); del vs[k]
    moved = d.numel() * d.itemsize + w.numel() * w.itemsize + i.numel() * 8
    a = torch.empty(moved // 2, dtype=torch.uint8, device=dev).random_(); b = torch.empty_like(a)
    vs["copy"] = lambda: b.copy_(a)
    c = timing.compare(vs, dev, budget_ms=40)
    print(name, {k: "%.1f" % t.us for k, t in c.timings.items()}, flush=True)
i = uni(32768, 50304); d = torch.randn(32768, 768, device=dev).bfloat16(); w = torch.empty(50304, 768, dtype=torch.bfloat16, device=dev)
from torch.profiler import profile, ProfilerActivity
for k, c in ((k5, c5), (k7, k7.configs[0]), (k7, k7.configs[1])):
    f = k.bound(k5.heuristic({"dout": d, "indices": i, "weight": w, "padding_idx": -1}) if k is k5 else c)
    big = torch.empty(2**28, dtype=torch.uint8, device=dev)
    for _ in range(3): f(d, i, w, -1)
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(5): big.fill_(1); f(d, i, w, -1)
        torch.cuda.synchronize()
    ev = sorted((e for e in p.events() if e.device_type.name == "CUDA"), key=lambda e: e.time_range.start)
    z = None
    for e in ev[-8:]:
        if "Fill" in e.name or "fill" in e.name: z = e.time_range.end; continue
        if z: print(k.name, c, e.name[:40], "from %.1f to %.1f" % (e.time_range.start - z, e.time_range.end - z))
