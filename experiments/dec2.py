import torch, functools, sys
from rooftile.core import timing
from rooftile.workbench import peers
from rooftile.workbench.explain import operator
from rooftile.ops.attention_decode import triton_kernels as tk
op=operator('attention_decode')
dev=torch.device('cuda')
k=[k for k in op.kernels if k.name=='triton'][0]
case=[c for c in op.spec.cases if 'bench' in c.use and c.dims['B']==1 and c.dims['S']==65536][0]
call=op.spec.draw(case,0,dev)
keep=tk.splits_of; launch=tk.launch; ld=tk.launch_described
def with_splits(n,c,join=True):
    def run():
        tk.splits_of=lambda *a: (n,0)
        if not join:
            tk.launch=lambda f,*a,**k2: launch(f,*a,**k2) if f is tk._split else None
            tk.launch_described=lambda *a,**k2: None
        r=k.bound(c)(*call.values())
        tk.splits_of,tk.launch,tk.launch_described=keep,launch,ld
        return r
    return run
vs={'copy':peers.copy_run(sum(call[n].numel()*2 for n in ('k_cache','v_cache')),dev)}
C=k.configs
for n in (33,66,99,132,198): vs[f'c0n{n}']=with_splits(n,C[0])
vs['c0n33split']=with_splits(33,C[0],False)
vs['c0n66split']=with_splits(66,C[0],False)
for n in (49,98): vs[f'c9n{n}']=with_splits(n,C[9])
for n in (66,132,198): vs[f'c10n{n}']=with_splits(n,C[10])
for n in (33,66,99): vs[f'c11n{n}']=with_splits(n,C[11])
c=timing.compare(vs,dev,budget_ms=60)
f=c.timings['copy'].us
for n,t in c.timings.items(): print(n,f'{t.us:.1f} {f/t.us:.3f}',flush=True)
