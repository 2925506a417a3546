"""Pure reads: lines asked for as the first to leave spare the flush's dirty ones (reading 128 MiB took 30.6 us so, 34.5 as ever; 512 MiB 132 and 126).
gemv's v4_split and grad_norm's v5_norm_vector with each policy, all in turn. `python ev.py compile` compiles them without a GPU."""
import functools, sys, tempfile
from pathlib import Path
from rooftile.core import timing
from rooftile.cuda.source import Source
from rooftile.ops.adamw import cuda_kernels as norms
from rooftile.ops.gemv import cuda_kernels as products
HINT = '''#include "rooftile/policy.cuh"
__device__ __forceinline__ uint4 hinted(const void* g) {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::%s.b64 %%0, 1.0;" : "=l"(policy));
  return rooftile::load_global(reinterpret_cast<const uint4*>(g), policy);
}
template <typename V> __device__ __forceinline__ void hinted_to(V& r, const void* g) { *reinterpret_cast<uint4*>(&r) = hinted(g); }
'''
def changed(source, old, new, policy):
    text = source.path.read_text(); assert text.count(old) == 1
    text = text.replace(old, new).replace("using namespace rooftile;", HINT % policy + "using namespace rooftile;", 1)
    p = Path(tempfile.mkdtemp()) / source.path.name; p.write_text(text); return Source(p)
POLICIES = ("evict_first", "evict_normal", "evict_last", "evict_unchanged")
split = products._LAST
norm = next(k for k in norms.NORM if k.name == "cuda.v5_norm_vector").sources[0]
SPLITS = {p: changed(split, "load_global(rA[r][j], gA[r] + (i + j * step) * WIDTH)", "hinted_to(rA[r][j], gA[r] + (i + j * step) * WIDTH)", p) for p in POLICIES}
NORMS = {p: changed(norm, "__ldcs(reinterpret_cast<const uint4*>(gFrom + first + v * NEXT))", "hinted(gFrom + first + v * NEXT)", p) for p in POLICIES}
if sys.argv[1:] == ["compile"]:
    from rooftile.cuda.compile import compiled
    for p in POLICIES:
        print(p, compiled(SPLITS[p], "gemv<__nv_bfloat16, float, 256, 4, 2>", "sm_90a").registers, compiled(NORMS[p], "squares<float, 4, 256>", "sm_90a").registers)
    sys.exit()
import torch
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
dev = torch.device("cuda")
def swapped(module, name, source, run):
    def call():
        keep = getattr(module, name); setattr(module, name, source); r = run(); setattr(module, name, keep); return r
    return call
print({n: getattr(norms, n) for n in dir(norms) if isinstance(getattr(norms, n), Source)})
for op, kernel, versions in (("gemv", "cuda.v4_split", SPLITS), ("grad_norm", "cuda.v5_norm_vector", NORMS)):
    op = operator(op); k = next(k for k in op.kernels if k.name == kernel)
    for case in (c for c in op.spec.cases if "bench" in c.use):
        call = op.spec.draw(case, 0, dev)
        if k.refuse(call): continue
        config = k.heuristic(call)
        vs = {"copy": peers.copy_run(op.spec.floor_bytes(call), dev), "now": functools.partial(k.bound(config), *call.values())}
        for p, s in versions.items():
            if op.spec.name == "gemv":
                vs[p] = functools.partial(products._split(s), *call.values(), config=config)
            else:
                name = next(n for n in dir(norms) if getattr(norms, n) == norm)
                vs[p] = swapped(norms, name, s, vs["now"])
        c = timing.compare(vs, dev, budget_ms=60); f = c.timings["copy"].us
        print(case.id[:40], "noise %.3f" % c.noise, {n: f"{t.us:.1f} {f / t.us:.3f}" for n, t in c.timings.items()}, flush=True)
