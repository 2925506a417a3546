import sys, torch, functools, importlib
sys.path.insert(0, ".gpu/newv5")
from rooftile.core import timing
from rooftile.workbench.explain import operator
dev = torch.device("cuda"); spec = operator("attention_backward").spec
mods = {n: next(k for k in importlib.import_module("k" + n).BACKWARD if k.name == "cuda.v5_hopper") for n in sys.argv[1]}
for sub in ("B16_T1024_S1024_H16_D128-bfloat16-causal=True", "B16_T1024_S1024_H16_D128-bfloat16-causal=False", "B4_T4096_S4096_H16_D128-bfloat16-causal=False", "B32_T1024_S1024_H12_D64-bfloat16-causal=True", "B4_T4096_S4096_H32_D64-bfloat16-causal=False", "B16_T1024_S1024_H32_D64-bfloat16-causal=False", "B1_T16384_S16384_H32_D64-bfloat16-causal=False"):
    case = next(c for c in spec.cases if c.id.startswith(sub)); call = spec.draw(case, 0, dev)
    f = {n: functools.partial(m.run, *call.values()) for n, m in mods.items()}
    for g in f.values(): g()
    r = timing.compare(f, dev, budget_ms=120)
    print(sub[:44], "noise %.3f" % r.noise, *("%s %.1f" % (n, r.timings[n].us) for n in f), flush=True)
    del call, f; torch.cuda.empty_cache()
