import functools, torch, sys
from pathlib import Path
from rooftile.core import timing
from rooftile.cuda.source import Source
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
from rooftile.ops.attention_decode import cuda_kernels as ck
dev = torch.device("cuda"); orig, text = ck.launch, ck.V2.path.read_text()
def cut(t, a, b, new=""):
    i = t.index(a); j = t.index(b, i); return t[:i] + new + t[j:]
soft = ("#pragma unroll\n      for (int h = 0; h < 2; ++h) {\n        float larger", "      add<X, D>(out")
V = {"full": text,
     "no add": text.replace("      add<X, D>(out, s, sK + TILE, PITCH);", "      out[0][0] += s[0][0] + s[1][1];"),
     "no softmax": cut(text, *soft),
     "no products": text.replace("      products<X, D>(s, q, sK, PITCH);", "      s[0][0]=s[0][1]=s[0][2]=s[0][3]=s[1][0]=s[1][1]=s[1][2]=s[1][3]=float(i);"),
     "only add": cut(text, *soft).replace("      products<X, D>(s, q, sK, PITCH);", "      s[0][0]=s[0][1]=s[0][2]=s[0][3]=s[1][0]=s[1][1]=s[1][2]=s[1][3]=float(i);"),
     "loads": cut(text, *soft).replace("      products<X, D>(s, q, sK, PITCH);", "").replace("      add<X, D>(out, s, sK + TILE, PITCH);", ""),
     "loads, no end": cut(text, *soft).replace("      products<X, D>(s, q, sK, PITCH);", "").replace("      add<X, D>(out, s, sK + TILE, PITCH);", "").replace("  __syncthreads();  // all tiles are read", "  if (T > 0) return; __syncthreads();  // "),
     "full, no end": text.replace("  __syncthreads();  // all tiles are read", "  if (out[0][0] + out[1][1] + out[2][2]+ out[3][2]+ out[4][2]+ out[5][2]+ out[6][2]+ out[7][2]+ out[8][2]+ out[9][2]+ out[10][2]+ out[11][2]+ out[12][2]+ out[13][2]+ out[14][2]+ out[15][2]!= 1.25e8f) return; __syncthreads();  // ")}
S = {}
for n, t in V.items():
    p = Path(f"/tmp/v_{len(S)}.cu"); p.write_text(t); S[n] = Source(p)
def run(source, join, config, *args):
    def launch(s, instance, grid, block, *a, **k):
        if instance.startswith("join") and not join: return
        orig(source, instance, grid, block, *a, **k)
    ck.launch = launch
    try: return ck._rows(*args, config=config)
    finally: ck.launch = orig
op = operator("attention_decode"); spec = op.spec
for sub in ("B1_T1_H32_G8_D128_S65536", "B16_T1_H32_G8_D128_S8192"):
    case = next(c for c in spec.cases if "bench" in c.use and sub in c.id and not c.id.startswith("host"))
    call = spec.draw(case, 0, dev); args = tuple(call.values())
    want = op.kernel("triton").bound(op.kernel("triton").heuristic(call))
    vs = {"triton": functools.partial(want, *args)}
    for n, s in S.items():
        for c in ck.STAGES:
            f = functools.partial(run, s, False, c, *args); f(); torch.cuda.synchronize(); vs[f"{n} {c['stages']}"] = f
    vs["full with join"] = functools.partial(run, S["full"], True, ck.STAGES[0], *args)
    kv = torch.cat([args[1].view(-1), args[2].view(-1)]).view(torch.int32); vs["sum"] = lambda: kv.view(torch.float32).sum()
    vs["copy"] = peers.copy_run(spec.floor_bytes(call), dev)
    c = timing.compare(vs, dev, budget_ms=5)
    print(sub, "noise %.3f" % c.noise, [f"{x.us:.2f} {n}" for n, x in c.timings.items()], flush=True)
