import sys
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
base=Path(".gpu/v7/v7.cu").read_text().replace("#define VARIANT 1","#define VARIANT 2")
def go(name,t):
    p=Path(f"/tmp/v7b.cu"); p.write_text(t)
    k=compiled(Source(p),f"attention_backward<__nv_bfloat16, false>","sm_90a"); print(name,k.registers,k.spill_bytes,k.loss[:60] if k.loss else k.loss)
go("base",base)
go("nodq",base.replace("make_dq<T>(dq,","//").replace("add_queries(gHalf, dq);",""))
go("nodk",base.replace("make_dk<T>(dk,","//"))
go("nodv",base.replace("gradient<T, DV>(dv,","//"))
t=base
a=t.index("#pragma unroll\n    for (int j = 0; j < 32; j += 4) {\n      const float2 lse"); b=t.index("    mask<CAUSAL>")
go("noexp",t[:a]+t[b:])
go("nomask",base.replace("    mask<CAUSAL>","    //"))
go("noepi",base.replace("  store_rows<T, D>(tDk","  //").replace("dk, scale, sR","").replace("  store_rows<T, DV>(tDv","//"))
