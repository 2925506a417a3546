import sys, json
from rooftile.core.kernel import OPS
import rooftile
from rooftile.workbench import dry
op=OPS["attention"]
arch,every=int(sys.argv[1]),bool(int(sys.argv[2]))
def only(o,f):
    ks=tuple(k for k in o.kernels if f(k.name))
    object.__setattr__(o,"kernels",ks)
only(op.backward,lambda n:n in ("triton.one_pass","reference")); only(op,lambda n:n=="reference")
rows=dry.compile_all(["attention"],arch,every,False)
for r in rows:
    print(r.op,r.kernel,r.case[:60],r.config,r.fault,{k:v for k,v in vars(r).items() if k in("registers","spill_bytes","shared_bytes")})
