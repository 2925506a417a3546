import sys
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
B="__nv_bfloat16"
names={"c128":f"attention_backward<{B}, 128, true, false, false, 80>","c128_64":f"attention_backward<{B}, 128, true, false>","c64":f"attention_backward<{B}, 64, true, false>","c64t":f"attention_backward<{B}, 64, true, false, true>",
"f128":f"attention_backward<{B}, 128, false, false, false, 80>","f64":f"attention_backward<{B}, 64, false, false>","co128":f"attention_backward<{B}, 128, true, true>","co64":f"attention_backward<{B}, 64, true, true>",
"s128":f"attention_backward<{B}, 128, true, false, false, 80, true>","s64":f"attention_backward<{B}, 64, true, false, false, 128, true>",
**{f"{w[0]}{d}_{m}{'o'*o}{'s'*u}{'k'*k}":f"attention_backward_{w}<{B}, {d}, {str(bool(o)).lower()}, {m}, {str(bool(u)).lower()}, {str(bool(k)).lower()}>" for w in ("windowed","ragged") for d,m in ((128,80),(128,64),(64,128)) for o in (0,1) for u in (0,1) for k in (0,1) if not (o and u) and not (k and m!=64) and not (o and m==80)}}
src=Source(Path(sys.argv[1])); 
for n in sys.argv[2:] or names:
    try:
        k=compiled(src,names[n],"sm_90a"); print(n,k.registers,{a:getattr(k,a) for a in dir(k) if 'spill' in a or 'local' in a or 'stack' in a},flush=True)
    except Exception as e: print(n,str(e)[:1500])
