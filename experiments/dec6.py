import torch, functools
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
from rooftile.ops.attention_decode import triton_kernels as tk
op=operator('attention_decode'); dev=torch.device('cuda')
k=[k for k in op.kernels if k.name=='triton'][0]
real=tk.splits_of
def with_n(call,n,c):
    def run():
        tk.splits_of=lambda *a:(n,0)
        r=tk.attention_decode(*call.values(),config=c); tk.splits_of=real; return r
    return run
def show(name,vs):
    c=timing.compare(vs,dev,budget_ms=60); f=c.timings['copy'].us
    print(name,'noise %.3f'%c.noise,{n:f'{t.us:.1f} {f/t.us:.3f}' for n,t in c.timings.items()},flush=True)
for case in op.spec.cases:
    if 'bench' not in case.use or case.dims['B']!=1: continue
    call=op.spec.draw(case,0,dev)
    vs={'copy':peers.copy_run(sum(call[n].numel()*2 for n in ('k_cache','v_cache')),dev)}
    vs['pick']=functools.partial(tk.attention_decode,*call.values(),config=k.heuristic(call))
    for n in (30,31,32,33): vs[f'n{n}']=with_n(call,n,k.configs[0])
    show(case.id[:50],vs)
for B,S in ((1,4096),(1,2048),(1,16384),(2,8192),(4,1024)):
    q=torch.randn(B,1,32,128,device=dev,dtype=torch.bfloat16); kc=torch.randn(B,S,8,128,device=dev,dtype=torch.bfloat16); vc=torch.randn_like(kc); L=torch.full((B,),S,device=dev,dtype=torch.int32)
    call=dict(q=q,k_cache=kc,v_cache=vc,lengths=L,block_table=None,sinks=None,scale=.088,window=0,softcap=0.0)
    vs={'copy':peers.copy_run(kc.numel()*4,dev)}
    H=k.heuristic(call); vs['pick']=functools.partial(tk.attention_decode,*call.values(),config=H)
    t=-(-S//64)
    for n in sorted({33//B,32//B,t,t//2,-(-t//3),24//B}): vs[f'n{n}']=with_n(call,n,k.configs[0]) if n>0 else vs['pick']
    show(f'{B} {S} pick c{k.configs.index(H)} n{real(B*8,-(-S//H["BLOCK_N"]),H["programs"]*132)}',vs)
