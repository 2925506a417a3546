import sys, functools; sys.path.insert(0,'.gpu/exp')
import torch
from rooftile.ops.attention import gluon_launchers as new
import old_launchers as old
from rooftile.core import timing
try:
    from rooftile.workbench import peers; peers._module('flash_attn.cute'); fa=True
except Exception as e: print(e); fa=False
dev=torch.device('cuda')
ix={64:0,128:1,256:3}
rows=[(B,T,H,D,c) for D,H in ((64,32),(128,16)) for B,T in ((16,1024),(4,4096),(1,16384)) for c in (False,True)]
rows+=[(32,1024,12,64,True),(32,1024,12,64,False),(1,8192,64,128,True),(4,4096,8,256,True),(1,16384,8,256,True),(1,16384,8,256,False)]
if len(sys.argv)>1: rows=[r for r in rows if r[3]!=64]+[(4,4096,32,64,True),(16,1024,32,64,True),(16,1024,32,64,False),(4,4096,16,64,True),(1,16384,8,64,False)]
for B,T,H,D,causal in rows:
    torch.manual_seed(0)
    q,k,v=(torch.randn(B,T,H,D,device='cuda').bfloat16() for _ in range(3))
    call=dict(q=q,k=k,v=v,causal=causal,scale=D**-.5)
    K,O=new.KERNELS[ix[D]],old.KERNELS[ix[D]]
    vs={}
    if fa: vs['fa4']=functools.partial(peers._fa4_attention,**call)
    for i,c in enumerate(O.configs): vs[f'old{i}']=functools.partial(O.bound(c),*call.values())
    vs['old']=vs[f'old{O.configs.index(O.heuristic(call))}']
    for i,c in enumerate(K.configs): vs[f'new{i}']=functools.partial(K.bound(c),*call.values())
    a,b=vs['old'](),vs[f'new{K.configs.index(K.heuristic(call))}']()
    same=[bool((x==y).all()) for x,y in zip(a,b)]
    c=timing.compare(vs,dev,budget_ms=80)
    f=c.timings['fa4' if fa else 'old'].us
    print(B,T,H,D,causal,'same',same,'pick',K.configs.index(K.heuristic(call)),'noise %.3f'%c.noise,{n:f'{t.us:.1f} {f/t.us:.3f}' for n,t in c.timings.items()},flush=True)
