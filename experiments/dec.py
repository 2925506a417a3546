import torch, functools, sys
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
op=operator('attention_decode')
dev=torch.device('cuda')
k=[k for k in op.kernels if k.name=='triton'][0]
for case in op.spec.cases:
    if 'bench' not in case.use or case.dims.get('T')!=1: continue
    call=op.spec.draw(case,0,dev)
    if k.refuse(call): continue
    if case.dims['S']==16: continue
    vs={'copy':peers.copy_run(sum(call[n].numel()*2 for n in ('k_cache','v_cache')),dev)}
    vs['pick']=functools.partial(k.bound(k.heuristic(call)),*call.values())
    for i,c in enumerate(k.configs if case.dims['B']==1 else k.configs[:3]): vs[f'c{i}']=functools.partial(k.bound(c),*call.values())
    c=timing.compare(vs,dev,budget_ms=60)
    f=c.timings['copy'].us
    print(case.id[:70],'pick',k.configs.index(k.heuristic(call)),'noise %.3f'%c.noise,{n:f'{t.us:.1f} {f/t.us:.3f}' for n,t in c.timings.items()},flush=True)
