import torch,statistics,sys
from contextlib import nullcontext
from rooftile.training import benchmark as b
from rooftile.core.kernel import forced
setup=b.Setup(); config=setup.config(steps=400,lr=3e-4,min_lr=3e-4,warmup=0,clip=0.0)
tok=b._tokens(setup.model.vocab_size); C={}
for n in ("before","sums"):
    with (forced("linear_backward","cublaslt") if n=="before" else nullcontext()):
        C[n]=b._Contestant("rooftile",setup.model,config,tok); C[n].run(6)
R={n:[] for n in C}
for r in range(8):
    for n in (list(C) if r%2 else list(C)[::-1]): R[n].append(C[n].timed(20)[0])
print({n:(round(statistics.median(v),3),round(min(v),3),round(max(v),3)) for n,v in R.items()})
