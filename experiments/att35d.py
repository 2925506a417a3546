import sys, torch, functools, importlib, time
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, ".gpu/newv5")
from rooftile.core import timing
from rooftile.workbench.explain import operator
from rooftile.cuda.compile import compiled
dev = torch.device("cuda"); spec = operator("attention_backward").spec
cdiv = lambda a, b: -(-a // b)
import re
def plan(p):
    t, L, A, c = map(int, re.match(r"t(\d+)L(\d+)A(\d+)c(\d+)", p).groups())
    def of(causal, n, g, together, back):
        if causal:
            h = max(1, t // g)
            return h, h * cdiv(L, h * n), h * cdiv(A, h * n), max(1, n // c)
        return 1, cdiv(L, n) + 1, cdiv(A, n) + 1, max(1, n // c)
    return of
mods = {n: importlib.import_module("k" + n) for n in ("O", "N", "KA", "KC", "KE")}
VS = sys.argv[1].split(",")
t0 = time.time()
def comp(a): 
    try: compiled(*a)
    except Exception as e: print(a[1], str(e)[:200])
from rooftile.cuda import compile as cc
try:
    from cuda.core import Program
except Exception:
    from cuda.core.experimental import Program
compiled(mods['O'].V5, 'attention_backward<__nv_bfloat16, 64, true, false>', 'sm_90a')
with ThreadPoolExecutor(14) as ex: list(ex.map(comp, [(m.V5, i, "sm_90a") for m in mods.values() for i in ("attention_backward<__nv_bfloat16, 128, true, false>", "attention_backward<__nv_bfloat16, 64, true, false>", "attention_backward<__nv_bfloat16, 128, false, false, false, 80>", "attention_backward<__nv_bfloat16, 64, false, false>")]))
print("compiled %.0f s" % (time.time() - t0))
for sub in sys.argv[2].split(","):
    case = next(c for c in spec.cases if c.id.startswith(sub)); call = spec.draw(case, 0, dev)
    f, bad = {}, []
    for v in VS:
        n, _, p = v.partition(":")
        m = mods[n]; run = next(k for k in m.BACKWARD if k.name == "cuda.v5_hopper").run
        def go(m=m, p=p, run=run):
            m.PLAN = p and plan(p)
            return run(*call.values())
        f[v] = go
    want = f["O"]()
    for v, g in f.items():
        for _ in range(3):
            e = max(((x.float() - y.float()).norm() / y.float().norm()).item() for x, y in zip(g(), want))
            if not e < 1e-3: bad.append((v, e))
    del want
    r = timing.compare(f, dev, budget_ms=70)
    print(sub[:44], "noise %.3f" % r.noise, *("%s %.1f" % (n, r.timings[n].us) for n in f), "BAD" if bad else "", bad[:6], flush=True)
    del call, f; torch.cuda.empty_cache()
