import sys
from rooftile.cuda import compile as compiler
from rooftile.cuda.source import Source
import pathlib
H = pathlib.Path(__file__).resolve().parent
B="__nv_bfloat16, float, long long"
for f, i in [("concat.cu", f"tokens<{B}, false, false, {e}, 1, 0>") for e in (1,2,4)]+[("concat.cu", f"bulk<{B}, false, false, {f}, {t}>") for f in (0, 1) for t in ("true","false")]:
    m = compiler.compiled(Source(H / f), i, "sm_90a"); print(f, i, m.registers, m.spill_bytes)
