import sys
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
B="__nv_bfloat16"
src=Source(Path("src/rooftile/ops/attention/cuda/v5_hopper_backward.cu"))
names=["pack_bits<true>","pack_bits<false>"]+[f"attention_backward_windowed<{B}, {d}, {str(bool(o)).lower()}, {m}, {str(bool(u)).lower()}, {str(bool(k)).lower()}, {bits}>" for bits in ("true","false") for d,m in ((128,64),(64,128)) for o,u,k in ((0,0,0),(1,0,0),(0,1,0),(0,0,1),(1,0,1),(0,1,1)) if not (k and d==64)]
for n in names[:int(sys.argv[1])] if len(sys.argv)>1 else names:
    try:
        k=compiled(src,n,"sm_90a"); print(n,k.registers,k.spill_bytes,k.loss,flush=True)
    except Exception as e: print(n,str(e)[:1500])
