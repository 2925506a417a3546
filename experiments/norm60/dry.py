import sys
from pathlib import Path
from rooftile.cuda import compile as compiler
from rooftile.cuda.source import Source
B = Source(Path(".gpu/norm60/bulk.cu").resolve()); V3 = Source(Path("src/rooftile/ops/_shared/cuda/sum_norm_v3_pipeline.cu").resolve())
from concurrent.futures import ThreadPoolExecutor
def one(a):
    n, s, c, aff = a
    i = f"backward<Dropped, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, true, {aff}, {aff}, false, {', '.join(map(str, c))}, true>"
    try:
        m = compiler.compiled(s, i, "sm_90a"); return n, c, aff, m.registers, m.spill_bytes
    except Exception as e: return n, c, aff, str(e)[:1500]
A = [(32, 4, 384, 2, 1), (32, 4, 384, 3, 1), (32, 4, 320, 3, 1), (32, 4, 256, 4, 1), (32, 4, 512, 2, 1), (32, 4, 256, 2, 2),(64,2,64,4,8)]
BB = [(256,2,256,3,2),(256,2,256,4,2),(256,2,256,3,3),(128,4,128,3,3),(128,4,128,4,2),(512,1,512,4,2),(128,4,128,2,4),(256,2,256,2,4)]
W = [("spread", Source(Path(".gpu/norm60/spread.cu").resolve()), c, "true") for c in A[:-1]] + [("bulk", B, A[-1], "true")]
with ThreadPoolExecutor(2) as p:
    for r in p.map(one, W): print(*r, flush=True)
