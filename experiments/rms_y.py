"""python rms_y.py compile | run: v4 of rmsnorm and layernorm with other loads, weights and stores, in one process with the drawn input of the benchmark and with another."""
import sys, tempfile
from pathlib import Path
import rooftile
from rooftile.cuda.source import Source
from rooftile.cuda import compile as C
F = Path(tempfile.mkdtemp())
ROOT = Path(rooftile.__file__).parent
LOAD = ("rX[v] = load_global(gRow + threadIdx.x + v * THREADS, policy);", "load_now(rX[v], gRow + threadIdx.x + v * THREADS);")
PLAIN = (LOAD[0], "rX[v] = __ldg(gRow + threadIdx.x + v * THREADS);")
FENCE = ("    if (i_v >= N / WIDTH) break;\n", '    if (i_v >= N / WIDTH) break;\n    asm volatile("" : "+r"(rX[v].x), "+r"(rX[v].y), "+r"(rX[v].z), "+r"(rX[v].w)::"memory");\n')
STORE = ("__stwb(gTo + i_v, rX[v]);", "gTo[i_v] = rX[v];")
STCS = ("__stwb(gTo + i_v, rX[v]);", "__stcs(gTo + i_v, rX[v]);")
NORSTD = ("  if (gRstd && threadIdx.x == 0) gRstd[blockIdx.x] = rstd;\n", "")
ASK = ("    if (WEIGHT) parameters(rW, gW + i_v * WIDTH, offset);\n", "    if (WEIGHT) {\n      Parameters<W, WIDTH> rNow;\n      rNow.ask(gW + i_v * WIDTH);\n      rNow.open(rW, offset);\n    }\n")
VAR = {"main": [], "now": [LOAD], "ldg": [PLAIN], "now+fence": [LOAD, FENCE], "now+ask": [LOAD, ASK], "now+fence+ask": [LOAD, FENCE, ASK], "now+fence+ask-rstd": [LOAD, FENCE, ASK, NORSTD], "main+store": [STORE], "now+store": [LOAD, STORE], "ldg+store": [PLAIN, STORE], "now+stcs": [LOAD, STCS], "main+stcs": [STCS]}
def made(name):
    s = (ROOT / "ops/rmsnorm/cuda/v4_register_row.cu").read_text()
    for a, b in VAR[name]:
        assert a in s, a
        s = s.replace(a, b)
    p = F / f"{''.join(c if c.isalnum() else '_' for c in name)}.cu"; p.write_text(s); return Source(p)
I = "rmsnorm<__nv_bfloat16, __nv_bfloat16, true, {}, {}>"
X = Source(Path(__file__).with_name("rms_x.cu")); XI = "rmsnorm<__nv_bfloat16, __nv_bfloat16, {}, {}, {}, 0, {}, false, 0>"
S = {n: made(n) for n in VAR}
SHAPES = [(4096, 16384, 4, 512), (16384, 4096, 4, 128), (8192, 8192, 4, 256)]
if sys.argv[1] == "compile":
    for n, s in S.items():
        for _, _, v, t in SHAPES: m = C.compiled(s, I.format(v, t), "sm_90a"); print(n, v, t, m.registers, m.spill_bytes)
else:
    import torch, rooftile.ops
    from rooftile.core import timing
    from rooftile.core.kernel import OPS
    from rooftile.cuda.launch import launch
    W = torch.device("cuda", 0); o = OPS["rmsnorm"]
    for m, n, v, t in SHAPES:
        for drawn in (True, False):
            if drawn:
                c = next(c for c in o.spec.cases if c.id.startswith(f"M{m}_N{n}")); call = o.spec.draw(c, 0, W); x, w = call["x"], call["weight"]
            else: x = torch.randn(m, n, device=W, dtype=torch.bfloat16); w = torch.randn(n, device=W, dtype=torch.bfloat16)
            good = {"house": lambda: rooftile.rmsnorm(x, w, 1e-6)}
            for k, s in S.items():
                def run(s=s):
                    out = torch.empty_like(x); launch(s, I.format(v, t), m, t, out, x.new_empty(0, dtype=torch.float32), x, w, n, n, 1e-6, 0.0); return out
                try: run(); torch.cuda.synchronize(); good[k] = run
                except Exception as e: print(k, repr(e)[:200])
            for p in (0, 1, 2):
                def run(p=p):
                    out = torch.empty_like(x); launch(X, XI.format(v, t, 2048 // t, p), m, t, out, x, w, n, m, 1e-6, 0.0); return out
                run(); good[f"x{p}"] = run
            with torch.no_grad():
                try:
                    from quack import rmsnorm as q
                    good["quack"] = lambda: q(x, w, eps=1e-6)
                    good["quack"]()
                except Exception as e: good.pop("quack", None)
                r = timing.compare(good, W, budget_ms=40.0)
                print(m, n, drawn, x.data_ptr() % 2**28 // 2**20, torch.empty_like(x).data_ptr() % 2**28 // 2**20, "  ".join(f"{k} {q.us:.2f}" for k, q in sorted(r.timings.items(), key=lambda i: i[1].us)), flush=True)
