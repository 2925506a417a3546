"""Whoever copies with a policy, with the copy's address masked (the tree) or not (inc_old). usage: ab62.py old|new -> one JSON line of us"""
import sys, json
from pathlib import Path
import rooftile.cuda.source as S, rooftile.cuda.compile as C
if sys.argv[1] == "old": S.INCLUDE = C.INCLUDE = Path(".gpu/inc_old").resolve()
import torch, rooftile
from rooftile.core import timing
torch.manual_seed(0)
d, bf = "cuda", torch.bfloat16
r = lambda *s, g=False, t=bf: torch.randn(*s, device=d, dtype=t).requires_grad_(g)
calls = {}
def grad(name, out, ins, dout=None):
    o = (out,) if isinstance(out, torch.Tensor) else tuple(out)
    g = tuple(map(torch.randn_like, o))
    calls[name + "'"] = lambda: torch.autograd.grad(o, ins, g, retain_graph=True)
for m, n in ((16384, 4096), (32768, 768), (8192, 8192), (4096, 1024)):
    x, w, b = r(m, n, g=True), r(n, g=True), r(n, g=True)
    xn = x.detach()
    calls[f"rms {m}x{n}"] = lambda xn=xn, w=w.detach(): rooftile.rmsnorm(xn, w)
    grad(f"rms {m}x{n}", rooftile.rmsnorm(x, w), (x, w))
    calls[f"ln {m}x{n}"] = lambda xn=xn, w=w.detach(), b=b.detach(): rooftile.layernorm(xn, w, b)
    grad(f"ln {m}x{n}", rooftile.layernorm(x, w, b), (x, w, b))
x, y, w = r(16384, 4096, g=True), r(16384, 4096, g=True), r(4096, g=True)
grad("add_rms 16384x4096", rooftile.add_rmsnorm(x, y, w), (x, y, w))
z = r(16384, 4096, g=True); b2 = r(4096, g=True)
grad("add_ln 16384x4096", rooftile.add_layernorm(x, y, w, b2), (x, y, w, b2))
for n, a in (("layer", (w, b2)), ("rms", (w,))):
    grad(f"drop_{n} 16384x4096", rooftile.dropout_add_norm(x, y, *a, p=0.1, norm=n), (x, y, *a))
for m in (1, 64):
    u, uw, ub = r(m, 1024, g=True), r(1024, g=True), r(1024, g=True)
    grad(f"rms {m}x1024", rooftile.rmsnorm(u, uw), (u, uw)); grad(f"ln {m}x1024", rooftile.layernorm(u, uw, ub), (u, uw, ub))
s = r(32768, 1024); calls["softmax 32768x1024"] = lambda: rooftile.softmax(s)
s2 = r(2048, 65536); calls["softmax 2048x65536"] = lambda: rooftile.softmax(s2)
c = r(8192, 8192); calls["scan"] = lambda: rooftile.scan(c)
q, k, v = r(64, 1, 32, 128), r(64, 2048, 8, 128), r(64, 2048, 8, 128)
L = torch.full((64,), 2048, device=d, dtype=torch.int32)
try:
    rooftile.attention_decode(q, k, v, L); calls["decode 64x2048"] = lambda: rooftile.attention_decode(q, k, v, L)
except Exception as e: print(str(e)[:150], file=sys.stderr)
k8, v8 = k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)
one = torch.ones(8, device=d)
try:
    rooftile.attention_decode(q, k8, v8, L, k_scale=one, v_scale=one); calls["decode8 64x2048"] = lambda: rooftile.attention_decode(q, k8, v8, L, k_scale=one, v_scale=one)
except Exception as e: print(str(e)[:150], file=sys.stderr)
for f in calls.values(): f()
t = timing.compare(calls, torch.device("cuda", 0), budget_ms=150).timings
print("AB " + json.dumps({n: round(x.us, 2) for n, x in t.items()}), flush=True)
