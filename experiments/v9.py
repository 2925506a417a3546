import torch
from rooftile.ops._shared import cuda_norms as N
from rooftile.cuda import compile as C
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import *
from pathlib import Path
O=Path('/work/main/src/rooftile/ops')
CT={torch.float32:'float',torch.bfloat16:'__nv_bfloat16',torch.float16:'__half'}
for T,W in ((torch.bfloat16,torch.bfloat16),(torch.bfloat16,torch.float32),(torch.float32,torch.float32)):
  for op,k in (('layernorm',2),('rmsnorm',1)):
    seen=set()
    for n in (65536,40000,131072,262144,16384):
      x=torch.empty(2048,n,dtype=T,device='meta'); p=torch.empty(n,dtype=W,device='meta')
      for cfg in N.AHEAD[:3]:
        try: s=N.ahead(x,2048,n,cfg,*[p]*k)
        except Exception as e: print(op,n,cfg,str(e)[:80]); continue
        inst=s[0]
        if inst in seen: continue
        seen.add(inst)
        try:
            c=C.compiled(Source(O/op/'cuda/v9_ahead.cu'),f"{op}<{CT[T]}, {', '.join([CT[W]]*k)}, {', '.join(['true']*k)}{inst}>","sm_90a")
            print(op,T,W,n,inst,c.registers,'SPILL' if c.spill_bytes else '',c.spill_bytes or '')
        except Exception as e: print(op,n,inst,str(e)[:300])
