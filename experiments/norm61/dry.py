import sys
sys.path.insert(0, ".gpu/norm61")
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
import make
make.write()
from rooftile.cuda import compile as compiler
from rooftile.cuda.source import Source
SHAPES = {"layer": ("true", "true", "true"), "rms": ("false", "true", "false")}
CFG = [tuple(map(int, c.split(","))) for c in (sys.argv[1].split() if len(sys.argv) > 1 else ["256,2,256,3,2"])]
names = sys.argv[2].split() if len(sys.argv) > 2 else list(make.all_of())
def one(a):
    n, c, k = a
    la, w, b = SHAPES[k]
    i = f"backward<Dropped, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, {la}, {w}, {b}, false, {', '.join(map(str, c))}, true>"
    try:
        m = compiler.compiled(Source((make.H / f"{n}.cu")), i, "sm_90a"); return n, k, c, m.registers, m.spill_bytes
    except Exception as e: return n, k, c, str(e)[:600]
with ThreadPoolExecutor(2) as p:
    for r in p.map(one, [(n, c, k) for n in names for c in CFG for k in SHAPES]): print(*r, flush=True)
