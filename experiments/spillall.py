import sys
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
B="__nv_bfloat16"; src=Source(Path("src/rooftile/ops/attention/cuda/v5_hopper_backward.cu"))
names=[f"attention_backward<{B}, 64, false, true>",f"attention_backward<{B}, 64, true, true>",f"attention_backward<{B}, 128, false, true>",f"attention_backward<{B}, 128, false, true, false, 80>",f"attention_backward<{B}, 128, true, true>",f"attention_backward<{B}, 64, false, false>",f"attention_backward<{B}, 64, true, false>",f"attention_backward<{B}, 64, true, false, true>",f"attention_backward<{B}, 64, true, true, true>",f"attention_backward<{B}, 64, false, false, true>",f"attention_backward<{B}, 64, false, true, true>",f"attention_backward<{B}, 128, true, false, false, 80>",f"attention_backward<{B}, 128, true, false>",f"attention_backward<{B}, 128, false, false, false, 80>",f"attention_backward<{B}, 128, false, false>",f"attention_backward<{B}, 128, true, false, false, 80, true>",f"attention_backward<{B}, 128, true, false, false, 64, true>",f"attention_backward<{B}, 64, true, false, false, 128, true>"]
names+=[f"attention_backward_windowed<{B}, {d}, {str(bool(o)).lower()}, {m}, {str(bool(u)).lower()}, {str(bool(k)).lower()}, {bits}>" for bits in ("true","false") for d,m in ((128,64),(64,128),(128,80)) for o,u,k in ((0,0,0),(1,0,0),(0,1,0),(0,0,1),(1,0,1),(0,1,1)) if not (k and d==64) and not (m==80 and (o or k or bits=="true"))]
names=names+[n.replace(B,"__half") for n in names]
compiled(src,names[0],"sm_90a"); bad=0
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as ex:
  for n,k in zip(names,ex.map(lambda n: compiled(src,n,"sm_90a"),names)):
    if k.spill_bytes or k.loss: print(n,k.registers,k.spill_bytes,k.loss); bad+=1
print(len(names),"bad",bad)
