import torch, functools
from rooftile.ops.attention import cuda_kernels as ck
from rooftile.core import timing
K={k.name:k for k in ck.BACKWARD}
cdiv=lambda a,b:-(-a//b)
L=ck.LEAD
def ours(tg,call):
    ck.dealt=lambda causal,ordered,t,tiles:(tg, tg*cdiv(L,tg*tiles)+(tg==1))
    return K['cuda.v5_hopper'].run(*call)
for B,T,H,G,D in ((1,8192,64,8,128),(1,16384,16,16,128),(1,8192,32,8,128),(4,4096,16,16,128),(1,8192,32,32,128),(1,16384,32,32,64),(4,4096,32,32,64),(2,8192,32,8,64),(4,4096,32,8,128)):
    torch.manual_seed(0)
    q,do=(torch.randn(B,T,H,D,device='cuda').bfloat16() for _ in range(2))
    k,v=(torch.randn(B,T,G,D,device='cuda').bfloat16() for _ in range(2))
    out,lse=(torch.randn_like(q), torch.full((B,T,H),12.0,device='cuda'))
    call=(do,q,k,v,out,lse,True,D**-.5)
    vs={f't{tg}':functools.partial(ours,tg,call) for tg in (2,3,4,6,8,16)}
    c=timing.compare(vs,torch.device('cuda'),budget_ms=80)
    print(B,T,H,G,D,'now',max(2,min(8,2**15//T)),'noise %.3f'%c.noise,{n:f'{t.us:.0f}' for n,t in c.timings.items()},flush=True)
