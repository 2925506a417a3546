import torch, functools, sys
from rooftile.ops.attention import cuda_kernels as ck
from rooftile.core import timing
from rooftile.workbench import peers
K={k.name:k for k in ck.BACKWARD}
cdiv=lambda a,b:-(-a//b)
L=ck.LEAD
keep=ck.dealt
dev=torch.device('cuda')
def ours(parts,tg,call):
    ck.PARTS=parts
    ck.dealt=(lambda causal,ordered,t,tiles:(tg, tg*cdiv(L,tg*tiles)+(tg==1))) if tg else keep
    return K['cuda.v5_hopper'].run(*call)
for B,T,H,G,D,causal in ((1,8192,64,8,128,True),(1,16384,16,16,128,True),(1,8192,32,8,128,True),(1,16384,64,8,128,True),(2,8192,64,8,64,True)):
    torch.manual_seed(0)
    q,do=(torch.randn(B,T,H,D,device='cuda').bfloat16() for _ in range(2))
    k,v=(torch.randn(B,T,G,D,device='cuda').bfloat16() for _ in range(2))
    out,lse=(torch.randn_like(q), torch.full((B,T,H),12.0,device='cuda'))
    call=(do,q,k,v,out,lse,causal,D**-.5)
    leaves=[x.detach().requires_grad_() for x in (q,k,v)]
    with torch.enable_grad(): made=peers._fa4_attention(*leaves,causal,D**-.5)
    vs={'fa4':lambda: torch.autograd.grad(made,leaves,do,retain_graph=True)}
    for parts in ((1,2,4) if H>G else (1,)):
        for tg in (None,1,2,4,8): vs[f'p{parts}t{tg}']=functools.partial(ours,parts,tg,call)
    c=timing.compare(vs,dev,budget_ms=90)
    f=c.timings['fa4'].us
    print(B,T,H,G,D,causal,'noise %.3f'%c.noise,{n:f'{t.us:.0f} {f/t.us:.3f}' for n,t in c.timings.items()},flush=True)
