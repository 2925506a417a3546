"""The gate's points in its layout `far` alone. interpret | sim [operators]"""
import sys, contextlib, collections, time
mode, names = sys.argv[1], sys.argv[2:]
import rooftile
from rooftile.workbench import gatekeeper as g, check as gate
from rooftile.cuda import simulator
from rooftile.cuda.simulator import build
if mode == "interpret": from rooftile.workbench import interpreter
pts = [p for p in gate.grid(g.named(names), None, use="smoke") if g._here(p, mode)]
t0 = time.time(); ctx = contextlib.nullcontext()
if mode == "sim":
    build.compiler(); build.runtime()
    with simulator.active(): pts = g.affordable(pts)
    ctx = simulator.active("checks")
elif mode == "interpret": pts = g.affordable(pts)
pts = [p for p in pts if p.variant == "far"]
c = collections.Counter()
with ctx:
    for p in pts:
        for v in g._run([p], "cpu", None):
            c[v["status"]] += 1
            if v["status"] in ("failed", "error"): print(v["op"], v["kernel"], v["case"][:60], v["variant"], v["status"], v["message"][:220], flush=True)
print(mode, dict(c), f"{time.time()-t0:.0f} s")
