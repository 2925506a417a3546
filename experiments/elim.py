import torch, sys, warnings
from torch.profiler import profile, ProfilerActivity
warnings.filterwarnings("ignore")
from pathlib import Path
from rooftile.core.kernel import OPS
from rooftile.cuda.source import Source
import rooftile.ops
rk=sys.modules["rooftile.ops.segment_sum.runs_kernels"]
op=OPS["segment_sum"]; dev="cuda"
flush=torch.empty(256<<20,dtype=torch.uint8,device=dev)
src=open(".gpu/seg.py").read()
exec(src[src.index("def cuts"):src.index("torch.manual_seed(0)")])
torch.manual_seed(0)
def variant(name, *subs):
    s=open("src/rooftile/ops/segment_sum/cuda/v6_runs.cu").read()
    for a,b in subs:
        assert a in s,(name,a); s=s.replace(a,b)
    p=Path(f".gpu/rd/{name}.cu").resolve(); p.write_text(s); return Source(p)
base=rk.RUNS
V={"base":base,
 "nofind":variant("nofind",("find<WARP>(gOffsets, E, first)","first * E / M")),
 "ldca":variant("ldca",("load_global(reinterpret_cast<const uint4*>(gNext), policy)","__ldca(reinterpret_cast<const uint4*>(gNext))")),
 "ldcs":variant("ldcs",("load_global(reinterpret_cast<const uint4*>(gNext), policy)","__ldcs(reinterpret_cast<const uint4*>(gNext))")),
 "occ2":variant("occ2",("ROWS > 4 || WIDTH > 4 ? 3 : 4","2")),
 "nowrite":variant("nowrite",("else if (segment.is_one() && tells) write","else if (segment.is_one() && tells && rSum[0] == 1234.5f) write")),
 "noborder":variant("noborder",("int border = ends();","int border = count + 1;")),
}
for n,dt in ((128,torch.float32),(128,torch.bfloat16)):
    m=1<<20; x=torch.randn(m,n,device=dev,dtype=dt)
    for e in (16384,1024,1):
        o=cuts(m,e,0)
        for name,s in V.items():
            if e<16384 and name!="base": continue
            rk.RUNS=s
            for c in ({"rows":4,"runs":2048},{"rows":8,"runs":2048},{"rows":4,"runs":8192}):
                print(str(dt)[6:],e,name,*c.values(),*spans(lambda: op.kernel("cuda.v6_runs").run(x,o,config=c),8),flush=True)
x=torch.randn(1<<26,1,device=dev)
for e in (1<<20,1<<16,1):
    o=cuts(1<<26,e,0); k=op.kernel("cuda.v5_laid")
    for c in k.configs[:3]: print("v5",e,*c.values(),*spans(lambda: k.run(x,o,config=c)),flush=True)
