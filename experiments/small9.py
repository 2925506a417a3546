import functools, torch
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
from rooftile.ops.attention_decode import triton_kernels as dec
dev = torch.device("cuda")
EXTRA = (dec._tiles(64, 128, 1, 4, 3), dec._tiles(64, 64, 1, 4, 4), dec._tiles(64, 64, 1, 4, 6), dec._tiles(64, 64, 1, 8, 6), dec._tiles(64, 64, 1, 4, 5), dec._tiles(64, 32, 2, 4, 6), dec._tiles(64, 128, 1, 8, 4), dec._tiles(64, 64, 2, 8, 3))
op = operator("attention_decode"); spec = op.spec
for sub in ("B16_T1_H32_G8_D128_S64", "B1_T1_H32_G8_D128_S64", "B64_T1_H32_G8_D128_S64", "B16_T1_H32_G8_D128_S16", "B16_T8", "B16_T1_H32_G8_D128_S8192"):
    for case in (c for c in spec.cases if "bench" in c.use and sub in c.id and not c.id.startswith("host")):
        try:
            call = spec.draw(case, 0, dev)
            vs = {"chosen " + str(list(op.choose(call).config.values())): functools.partial(op, *call.values())}
            k = op.kernel("triton")
            for c in (*dec.CONFIGS, *EXTRA):
                f = functools.partial(k.bound(c), *call.values())
                try: f()
                except Exception as e: print("no", c, str(e)[:80]); continue
                vs[str(list(c.values()))] = f
            vs["copy"] = peers.copy_run(spec.floor_bytes(call), dev)
            c = timing.compare(vs, dev, budget_ms=6)
            t = sorted((x.us, n) for n, x in c.timings.items())
            print(case.id[:44], "noise %.3f" % c.noise, [f"{u:.2f} {n}" for u, n in t][:9], [f"{u:.2f} {n}" for u, n in t if n.startswith("chosen")], flush=True)
        except Exception as e: print(case.id[:40], type(e).__name__, str(e)[:200], flush=True)
