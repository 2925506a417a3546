import functools, sys, torch, triton
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
from rooftile.ops.attention_decode import triton_kernels as dec
dev = torch.device("cuda")
NB = [{"rows": r, "warps": w, "per_sm": 1, "stages": 1} for r, w in ((1, 4), (1, 8), (1, 16), (2, 8), (2, 16), (4, 16))]
W = 4
real_l, real_d = dec.launch, dec.launch_described
def patched(real):
    def f(kernel, grid, *a, **k):
        if kernel is dec._combine: k["num_warps"] = W
        return real(kernel, grid, *a, **k)
    return f
dec.launch, dec.launch_described = patched(real_l), patched(real_d)
def with_w(f, w):
    def run():
        global W
        W = w
        return f()
    return run
JOBS = [("rmsnorm_backward", "M64_N", "triton", NB), ("layernorm_backward", "M64_N", "triton", NB), ("rmsnorm_backward", "M1_N", "triton", NB), ("layernorm_backward", "M1_N", "triton", NB),
 ("attention_decode", "B1_T1_H32", "decode", None), ("attention_decode", "B16_T1_H32_G8_D128_S16_", "decode", None),
 ("geglu", "M1_N8192", None, None), ("swiglu_backward", "M64_N14336", None, None), ("reglu_backward", "M64_N14336", None, None), ("swiglu", "M16384_N14336", None, None), ("cross_entropy_backward", "M32768_V256", None, None), ("cross_entropy_backward", "M32768_V50304", None, None),
 ("gemv_backward", "M14336", None, None), ("embedding", "", "both", None), ("linear_add_backward", "", None, None), ("residual_add", "", None, None),
 ("dropout_add_norm_backward", "M8192_N1024", "triton", NB[:1]), ("concat_kv", "B4", None, None)]
for name, sub, kname, configs in JOBS:
    op = operator(name)
    spec = op.spec
    for case in (c for c in spec.cases if "bench" in c.use and sub in c.id and not c.id.startswith("host")):
        try:
            call = spec.draw(case, 0, dev)
            chosen = op.choose(call)
            vs = {"chosen " + chosen.kernel.name + str(dict(chosen.config or {})): functools.partial(chosen.kernel.bound(chosen.config) if chosen.config else chosen.kernel.run, *call.values())}
            if kname == "decode":
                k = op.kernel("triton")
                for i, c in enumerate(dec.CONFIGS):
                    f = functools.partial(k.bound(c), *call.values())
                    try: f()
                    except Exception as e: print("no", c, str(e)[:80]); continue
                    vs[str(list(c.values()))] = with_w(f, 4)
                c0 = dict(chosen.config); f = functools.partial(k.bound(c0), *call.values())
                for w in (1, 2, 8, 16): vs[f"chosen w{w}"] = with_w(f, w)
            elif kname == "both":
                for k in op.kernels[:2]:
                    for c in (k.configs or [None]): vs[k.name + str(c)] = functools.partial(k.bound(c) if c else k.run, *call.values())
            elif configs:
                k = op.kernel(kname)
                for c in configs:
                    f = functools.partial(k.bound(c), *call.values())
                    try: f()
                    except Exception as e: print("no", c, str(e)[:100]); continue
                    vs[k.name + str(list(c.values()))] = f
            try: vs["peer.compile"] = peers.peer_run("compile", spec, case, call, dev) if kname != "decode" else None
            except Exception as e: print(str(e)[:80])
            vs["copy"] = peers.copy_run(spec.floor_bytes(call), dev)
            vs = {n: f for n, f in vs.items() if f}
            c = timing.compare(vs, dev, budget_ms=3)
            t = sorted((x.us, n) for n, x in c.timings.items())
            print(name, case.id[:40], "noise %.3f" % c.noise, [f"{u:.2f} {n}" for u, n in t if n.startswith(("chosen", "peer", "copy"))], "|", [f"{u:.2f} {n}" for u, n in t if not n.startswith(("chosen", "peer", "copy"))][:8], flush=True)
        except Exception as e: print(name, case.id[:40], type(e).__name__, str(e)[:200], flush=True)
