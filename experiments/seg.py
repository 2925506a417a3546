# segment_sum's two launches: each by itself, and from the first's start to the last's end; cold L2
import torch, sys
from rooftile.core.kernel import OPS
import rooftile.ops
from torch.profiler import profile, ProfilerActivity
op=OPS["segment_sum"]; dev="cuda"
flush=torch.empty(256<<20,dtype=torch.uint8,device=dev)
def cuts(m,e,half):
    c=torch.randint(0,m+1,(e-1,),device=dev).sort().values
    c=torch.cat([c.new_zeros(1),c,c.new_full((1,),m)])
    if half: c[1:]=c[1:].clamp_min(m//2)
    return c
def spans(f,n=10):
    for _ in range(2): f()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(n):
            flush.zero_(); f()
        torch.cuda.synchronize()
    ev=sorted((e for e in p.events() if e.device_time>0 and not any(w in e.name for w in ("emset","FillFunctor"))),key=lambda e:e.time_range.start)
    per=len(ev)//n; each={}; tot=[]
    for i in range(n):
        g=ev[i*per:(i+1)*per]
        tot.append(max(e.time_range.end for e in g)-g[0].time_range.start)
        for e in g: each.setdefault(e.name.split("<")[0].split("(")[0][-10:],[]).append(e.device_time)
    med=lambda b: round(sorted(b)[len(b)//2],1)
    return med(tot),{a:med(b) for a,b in each.items()}
torch.manual_seed(0)
for m,e,n,dt,half in ((1<<20,16384,128,torch.float32,0),(1<<20,16384,128,torch.bfloat16,0),(1<<20,16384,128,torch.float32,1),(1<<26,1<<20,1,torch.float32,0)):
    x=torch.randn(m,n,device=dev,dtype=dt); o=cuts(m,e,half)
    y=torch.empty(x.numel()//2,dtype=dt,device=dev); xs=x.view(-1)[:y.numel()]
    want=op.spec.reference(x[:1<<18],o.clamp(max=1<<18))
    print("==",m,n,str(dt)[6:],half,"copy",spans(lambda: y.copy_(xs)),flush=True)
    for name in sys.argv[1:]:
        if (x.shape[1]==1)!=(name[:2] in ("v5","v4")): continue

        k=op.kernel("cuda."+name)
        for c in k.configs[:7]:
            if k.refuse({"x":x,"offsets":o}): continue
            got=k.run(x[:1<<18],o.clamp(max=1<<18),config=c)
            err=(got.float()-want.float()).abs().max().item()
            print(name,*c.values(),"err %.0e"%err,*spans(lambda: k.run(x,o,config=c)),flush=True)
