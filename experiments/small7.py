import functools, sys, torch, triton
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
import importlib.util
dev = torch.device("cuda")
from rooftile.ops.attention_decode import triton_kernels as base
src = open(base.__file__).read()
def variant(name, *subs):
    s = src
    for a, b in subs:
        assert a in s, a
        s = s.replace(a, b)
    p = f"/tmp/dec_{name}.py"; open(p, "w").write(s)
    spec = importlib.util.spec_from_file_location(f"dec_{name}", p); m = importlib.util.module_from_spec(spec); sys.modules[f"dec_{name}"] = m; spec.loader.exec_module(m)
    return m
W2 = ("**both, CHUNK=min(64, power_of_2(splits)), num_warps=4", "**both, CHUNK=min(64, power_of_2(splits)), num_warps=2")
mods = {"base": base,
 "w2": variant("w2", W2),
 "first": variant("first", ("rX = tl.load(gX + at[:, None] + i_d[None, :])", 'rX = tl.load(gX + at[:, None] + i_d[None, :], eviction_policy="evict_first")')),
 "cg": variant("cg", ("rX = tl.load(gX + at[:, None] + i_d[None, :])", 'rX = tl.load(gX + at[:, None] + i_d[None, :], cache_modifier=".cg")')),
 "late": variant("late", ("    if EARLY:\n        gdc_launch_dependents()\n    FULL", "    FULL"), ("    if V_SCALE:\n        rAcc *=", "    if EARLY:\n        gdc_launch_dependents()\n    if V_SCALE:\n        rAcc *=")),
}
for n in (16, 31, 32, 33, 34, 40, 64, 66):
    mods[f"n{n}"] = variant(f"n{n}", W2, ("        splits, _ = splits_of(", f"        splits, _ = {n}, splits_of("))
C = {"": base.TWO, "4st": base._tiles(64, 64, 2, 4, 4, True), "3p": base._tiles(64, 64, 3, 4, 3, True), "128": base._tiles(64, 128, 1, 8, 3, True)}
JOBS = [("attention_decode", "B1_T1_H32"), ("attention_decode", "B16_T1_H32_G8_D128_S8192")]
for name, sub in JOBS:
    op = operator(name)
    spec = op.spec
    for case in (c for c in spec.cases if "bench" in c.use and sub in c.id and not c.id.startswith("host")):
        try:
            call = spec.draw(case, 0, dev)
            vs = {"chosen": functools.partial(op, *call.values())}
            ref = op(*call.values())[0].float()
            for n, m in mods.items():
                for cn, c in C.items():
                    if cn and not (n in ("w2", "n32") ): continue
                    f = functools.partial(m.attention_decode, *call.values(), config=c)
                    try:
                        e = (f()[0].float() - ref).abs().max().item()
                    except Exception as ex: print("no", n, cn, str(ex)[:80]); continue
                    if e > 1e-2: print("WRONG", n, cn, e)
                    vs[n + "/" + cn] = f
            vs["copy"] = peers.copy_run(spec.floor_bytes(call), dev)
            c = timing.compare(vs, dev, budget_ms=6)
            t = sorted((x.us, n) for n, x in c.timings.items())
            print(name, case.id[:40], "noise %.3f" % c.noise, [f"{u:.2f} {n}" for u, n in t], flush=True)
        except Exception as e: print(name, case.id[:40], type(e).__name__, str(e)[:200], flush=True)
for name, sub in (("gemv", "M16_K"), ("grad_norm", "bfloat16"), ("concat_kv", "B4"), ("embedding_backward", "V50304_N768-bfloat16"), ("masked_softmax_backward", "causal=True"), ("segment_sum", "")):
    op = operator(name); spec = op.spec
    for case in (c for c in spec.cases if "bench" in c.use and sub in c.id and not c.id.startswith("host")):
        try:
            call = spec.draw(case, 0, dev); vs = {}
            for k in op.kernels[:-1]:
                if k.name.startswith(("cuda.v1", "cuda.v2")) or k.refuse(call): continue
                for c in (k.configs or [None]):
                    f = functools.partial(k.bound(c) if c else k.run, *call.values())
                    try: f()
                    except Exception as ex: continue
                    vs[k.name + str(list(c.values()) if c else "")] = f
            vs["copy"] = peers.copy_run(spec.floor_bytes(call), dev)
            c = timing.compare(vs, dev, budget_ms=3)
            t = sorted((x.us, n) for n, x in c.timings.items())
            print(name, case.id[:40], "noise %.3f" % c.noise, [f"{u:.2f} {n}" for u, n in t][:8], flush=True)
        except Exception as e: print(name, case.id[:40], type(e).__name__, str(e)[:200], flush=True)
