import functools, sys, torch, triton
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
from rooftile.ops._shared.launch import launch, cdiv, rows
from rooftile.ops.embedding import triton_kernels as emb
dev = torch.device("cuda")
EW = [{"block": b, "warps": w} for b, w in ((128, 1), (128, 2), (256, 2), (256, 4), (512, 2), (512, 4), (1024, 2), (1024, 4))]
NB = [{"rows": 1, "warps": w, "per_sm": 1, "stages": s} for w in (2, 4, 8) for s in (1,)]
CT = [{"block": b, "warps": w} for b, w in ((512, 1), (512, 2), (1024, 1), (1024, 2), (1024, 4), (2048, 2), (2048, 4), (2048, 8), (4096, 4), (4096, 8))]
GV = [{"per_sm": p, "apart": a} for p in (1, 2, 3, 4) for a in (0, 1)]
EM = [(b, t, w) for b in (128, 256, 512, 1024) for t in (1024, 2048, 4096, 8192) for w in (2, 4, 8) if t >= b and t // w <= 2048 and t // w >= 256]
def embed(b, t, w, indices, weight, padding_idx):
    weight, v, n, stride = rows(weight)
    out = weight.new_empty((*indices.shape, n))
    m = indices.numel(); per = t // b
    launch(emb._forward, (cdiv(m, per), cdiv(n, b)), indices, weight, out, m, v, n, stride, ROWS=per, BLOCK_N=b, num_warps=w)
    return out
def orders(vs, call):
    from rooftile.ops.linear_add.vendor_kernels import product, flat, column_sum
    dout, x, weight = (call[n] for n in ("dout", "x", "weight"))
    g = flat(dout)
    vs["order dx dw db"] = lambda: (product(g, weight), product(g.t(), flat(x)), column_sum(g))
    vs["order dw db dx"] = lambda: (product(g.t(), flat(x)), column_sum(g), product(g, weight))
    vs["order dw dx db"] = lambda: (product(g.t(), flat(x)), product(g, weight), column_sum(g))
    vs["order dx db dw"] = lambda: (product(g, weight), column_sum(g), product(g.t(), flat(x)))
JOBS = [("layernorm_backward", "M1_N", "triton", NB), ("rmsnorm_backward", "M1_N", "triton", NB), ("rmsnorm_backward", "M64_N", "triton", NB), ("layernorm_backward", "M64_N", "triton", NB),
 ("residual_add", "1x8192-", "triton", EW), ("geglu_backward", "M1_N8192", "triton", EW), ("geglu", "M1_N8192", "triton", EW), ("reglu_backward", "M1_N8192", "triton", EW), ("reglu", "M1_N8192", "triton", EW), ("swiglu_backward", "M1_N8192", "triton", EW),
 ("swiglu", "M1_N8192", "triton", EW), ("reglu_backward", "M64_N14336", "triton", EW), ("geglu_backward", "M64_N14336", "triton", EW), ("swiglu_backward", "M64_N14336", "triton", EW), ("reglu", "M64_N14336", "triton", EW), ("swiglu", "M64_N14336", "triton", EW),
 ("cross_entropy_backward", "M32768_V256", "triton", CT), ("gemv_backward", "M14336_K4096-float32", "cuda.v4_split", GV), ("gemv_backward", "M16_K4194304", "cuda.v4_split", GV),
 ("embedding", "", "embed", EM), ("linear_add_backward", "M32768_N768_K", None, "orders")]
for name, sub, kname, configs in JOBS:
    op = operator(name)
    spec = op.spec
    for case in (c for c in spec.cases if "bench" in c.use and sub in c.id and not c.id.startswith("host")):
        try:
            call = spec.draw(case, 0, dev)
            if configs == "orders" and call.get("bias") is None and name == "linear_backward": continue
            chosen = op.choose(call)
            vs = {"chosen " + chosen.kernel.name + str(dict(chosen.config or {})): functools.partial(chosen.kernel.bound(chosen.config) if chosen.config else chosen.kernel.run, *call.values())}
            if kname == "embed":
                for k in op.kernels[:2]:
                    for c in (k.configs or [None]):
                        vs[k.name + str(c)] = functools.partial(k.bound(c) if c else k.run, *call.values())
                for c in EM: vs[str(c)] = functools.partial(embed, *c, *call.values())
                ref = chosen.kernel.bound(chosen.config)(*call.values()) if chosen.config else chosen.kernel.run(*call.values())
                assert all(torch.equal(ref, vs[str(c)]()) for c in EM)
            elif configs == "orders": orders(vs, call)
            else:
                k = op.kernel(kname)
                for c in configs:
                    f = functools.partial(k.bound(c), *call.values())
                    try: f()
                    except Exception as e: print("no", c, str(e)[:100]); continue
                    vs[k.name + str(c)] = f
            for p in ("compile",):
                vs["peer." + p] = peers.peer_run(p, spec, case, call, dev)
            if name == "embedding": vs["copy"] = peers.copy_run(spec.floor_bytes(call), dev)
            vs = {n: f for n, f in vs.items() if f}
            c = timing.compare(vs, dev, budget_ms=3)
            t = sorted((x.us, n) for n, x in c.timings.items())
            print(name, case.id[:40], "noise %.3f" % c.noise, [f"{u:.2f} {n}" for u, n in t if n.startswith(("chosen", "peer", "copy"))], "|", [f"{u:.2f} {n}" for u, n in t if not n.startswith(("chosen", "peer", "copy"))][:8], flush=True)
        except Exception as e: print(name, case.id[:40], type(e).__name__, str(e)[:200], flush=True)
