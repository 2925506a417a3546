# compiles a lab variant's _forward for sm_90 as a launch would
import sys,importlib
sys.path.insert(0,'/work/main/.gpu/fw66')
import rooftile, torch
from rooftile.core.kernel import OPS
from rooftile.workbench import dry
from dataclasses import replace
op=OPS["attention"]
for n in ("now","W","E2","C","CE2"):
    m=importlib.import_module("f_"+n)
    ks=tuple(k for k in m.KERNELS if k.name=="triton.wide")
    object.__setattr__(op,"kernels",(*ks,op.kernels[-1]))
    object.__setattr__(op.backward,"kernels",op.backward.kernels[-1:])
    for r in dry.compile_all(["attention"],90,True,False):
        if "T4096" in r.case or "T1024" in r.case: print(n,r.case[:50],r.config,r.fault,{k:v for k,v in vars(r).items() if k in("registers","spill_bytes","shared_bytes")})
