import functools, torch
from rooftile.core import timing
from rooftile.ops.attention import cuda_kernels as ck, banded_kernels as bk
from rooftile.core.kernel import OPS
import rooftile.ops.attention.api
op = OPS["attention_options_backward"]; k = op.kernel("cuda.v5_hopper")
dev = torch.device("cuda")
fwd = OPS["attention_options"]
def call(b,t,h,g,d,left,right,cap=0.0):
    q,kk,v,do = (torch.randn(b,t,x,d,device=dev).bfloat16() for x in (h,g,g,h))
    rules=(d**-0.5,left,right,cap,0.0)
    out,lse = fwd.launch(q,kk,v,None,None,None,None,None,*rules,False)[:2]
    return (do, torch.zeros_like(lse), q,kk,v,None,None,None,None,None,out,lse,*rules,False)
orig=ck.dealt
def with_(tog, c, m=None):
    def run():
        ck.dealt = orig if tog is None else (lambda causal, ordered, group, tiles: (tog, tog*ck.cdiv(ck.LEAD, tog*tiles)+(tog==1)))
        keep=bk.queries
        if m: bk.queries=lambda *a: m
        try: return k.run(*c)
        finally: ck.dealt=orig; bk.queries=keep
    return run
for name,c in (("w4096 D128 16k",call(1,16384,16,16,128,4095,0)),("w1024 D128 16k",call(1,16384,16,16,128,1023,0)),("w4096 D64 16k",call(1,16384,32,32,64,4095,0)),("w4096 64/8 16k",call(1,16384,64,8,128,4095,0)),("cap causal 4x4096",call(4,4096,16,16,128,-1,0,50.0)),("w4096 4x8192 32",call(4,8192,32,32,128,4095,0))):
    vs={f"tog {t}": with_(t,c) for t in (None,1,2,4,8,16,32)}
    if "w4096 D128 16k"==name: vs["m64"]=with_(None,c,64)
    r=timing.compare(vs,dev,budget_ms=400)
    print(name,"noise %.3f"%r.noise,{n:round(x.us,1) for n,x in r.timings.items()},flush=True)
