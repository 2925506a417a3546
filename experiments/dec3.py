import torch, functools, importlib.util, sys
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
from rooftile.ops.attention_decode import triton_kernels as tk
spec=importlib.util.spec_from_file_location('old','.gpu/olddec3/old.py'); old=importlib.util.module_from_spec(spec); spec.loader.exec_module(old)
op=operator('attention_decode'); dev=torch.device('cuda')
k=[k for k in op.kernels if k.name=='triton'][0]
def variant(m,n,c,chunk=None,join=True):
    def run():
        keep,launch,ld=m.splits_of,m.launch,m.launch_described
        if n: m.splits_of=lambda *a: (n,0)
        if chunk or not join:
            def other(by): return lambda f,*a,**k2: by(f,*a,**({**k2,'CHUNK':chunk or k2.get('CHUNK')} if f is m._combine else k2)) if join or f is m._split else None
            m.launch,m.launch_described=other(launch),other(ld)
        r=m.attention_decode(*call.values(),config=c)
        m.splits_of,m.launch,m.launch_described=keep,launch,ld
        return r
    return run
for case in op.spec.cases:
    if 'bench' not in case.use: continue
    call=op.spec.draw(case,0,dev)
    if k.refuse(call): continue
    C=k.configs; H=k.heuristic(call)
    vs={'copy':peers.copy_run(sum(call[n].numel()*2 for n in ('k_cache','v_cache')),dev)}
    vs['old']=variant(old,0,H); vs['new']=variant(tk,0,H)
    if case.dims['B']==1:
        for i,ns in ((0,(33,66,99)),(1,(16,)),(11,(16,)),(8,(33,)),(3,(33,)),(10,(33,66)),(7,(33,)),(5,(33,49)),(6,(33,49)),(9,(33,49))):
            for n in ns: vs[f'c{i}n{n}']=variant(tk,n,C[i],64)
        vs['c0n33split']=variant(tk,33,C[0],None,False); vs['c11n16split']=variant(tk,16,C[11],None,False)
    else:
        for i in (0,1,2,3,5,8): vs[f'c{i}']=variant(tk,0,C[i],64)
    a,b=vs['old'](),vs['new']()
    print(case.id[:60],'pick',C.index(H),'differ',(a[0].float()-b[0].float()).abs().max().item(),(a[1]-b[1]).abs().max().item())
    c=timing.compare(vs,dev,budget_ms=50); f=c.timings['copy'].us
    print('  noise %.3f'%c.noise,{n:f'{t.us:.1f} {f/t.us:.3f}' for n,t in c.timings.items()},flush=True)
