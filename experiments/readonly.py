import torch, functools
from pathlib import Path
from rooftile.core import timing
from rooftile.cuda.source import Source
from rooftile.cuda.launch import launch
from rooftile.workbench import peers
dev=torch.device('cuda'); S=Source(Path('.gpu/exp2/readonly.cu').resolve())
out=torch.zeros(4,dtype=torch.int32,device=dev)
clean=torch.empty(256*2**20//4,dtype=torch.int32,device=dev).zero_()
for mb in (128,256,512,1024):
    x=torch.randint(0,100,(mb*2**20//4,),dtype=torch.int32,device=dev)
    vs={'copy':peers.copy_run(x.numel()*4,dev)}
    for m in range(4):
        for u,g in ((8,132*2),(8,132*4),(16,132*2)):
            vs[f'm{m}u{u}g{g//132}']=functools.partial(launch,S,f'read<{m}, {u}>',g,512,x,out,x.numel()//4)
    c=timing.compare(vs,dev,budget_ms=30); f=c.timings['copy'].us
    print(mb,{n:f'{t.us:.1f}' for n,t in c.timings.items()},flush=True)
    # a clean L2: the flush, then another 256 MB read
    real=torch.cuda._sleep
    def sleep(n):
        launch(S,'read<0, 8>',132*4,512,clean,out,clean.numel()//4); real(n)
    torch.cuda._sleep=sleep
    c=timing.compare(vs,dev,budget_ms=30); torch.cuda._sleep=real
    print(mb,'CLEAN',{n:f'{t.us:.1f}' for n,t in c.timings.items()},flush=True)
