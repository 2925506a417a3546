import torch
from pathlib import Path
from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from torch.profiler import profile, ProfilerActivity
import warnings; warnings.filterwarnings("ignore")
S=Source(Path(".gpu/rd/read.cu").resolve())
flush=torch.empty(256<<20,dtype=torch.uint8,device="cuda"); out=torch.zeros(4,device="cuda")
def t(f,n=8):
    f(); torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(n): flush.zero_(); f()
        torch.cuda.synchronize()
    d=sorted(e.device_time for e in p.events() if e.device_time>0 and not any(w in e.name for w in ("emset","FillFunctor")))
    return d[len(d)//2]
for mb in (512,256):
    x=torch.randn(mb<<18,device="cuda"); n=x.numel()//4
    y=torch.empty(x.numel()//2,device="cuda")
    print(mb,"copy",t(lambda: y.copy_(x[:y.numel()])))
    for P in (0,1,2):
        row=[]
        for mode,share,each,bl in ((0,0,4,132*4),(0,0,4,132*8),(0,0,8,132*4),(0,0,4,n//1024),(1,4096,4,0),(1,8192,4,0),(1,32768,4,0),(1,n//(132*4),4,0),(1,n//(132*2),8,0),(2,4096,4,0),(2,8192,4,0),(2,8192,8,0),(2,n//(132*4)//1024*1024,4,0)):
            b=bl or -(-n//share)
            try: row.append((mode,share,each,b,round(t(lambda: launch(S,f"rd<{mode}, {P}, {each}>",b,256,out,x,n,share)),1)))
            except Exception as e: row.append((mode,share,each,b,repr(e)[:60]))
        print(mb,"policy",P); [print("   ",*r) for r in row]
