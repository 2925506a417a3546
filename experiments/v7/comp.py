
import sys
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
base=Path(".gpu/v7/v7.cu").read_text()
def variant(r,a,e):
    t=base.replace("#define REVERSE 0",f"#define REVERSE {r}").replace("#define AHEAD 0",f"#define AHEAD {a}").replace("#define EARLY_DP 0",f"#define EARLY_DP {e}")
    p=Path(f"/tmp/v7_{r}{a}{e}.cu"); p.write_text(t); return Source(p)
if __name__=="__main__":
  for v in [(0,0,0),(1,0,0),(0,1,0),(0,0,1),(0,1,1),(1,1,0),(1,1,1)]:
    for c in ("true","false"):
        k=compiled(variant(*v),f"attention_backward<__nv_bfloat16, {c}>","sm_90a"); print(v,c,k.registers,k.spill_bytes,(k.loss or "")[:50],flush=True)
