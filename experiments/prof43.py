import sys, collections, dataclasses, torch, time
from rooftile.training import benchmark as b
from torch.profiler import profile, ProfilerActivity
name=sys.argv[1]
setup=b.LLAMA if name=="llama" else b.Setup()
config=setup.config(steps=100, lr=3e-4, min_lr=3e-4, warmup=0, clip=0.0)
with b._contestant("rooftile", setup.model, config) as one:
    one.run(6)
    ms=[one.timed(10)[0] for _ in range(4)]
    N=4
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        one.timed(N)
    ev=[(e.time_range.start,e.time_range.end,e.name) for e in p.events() if e.device_type==torch.autograd.DeviceType.CUDA]
    ev.sort()
    t=collections.defaultdict(lambda:[0,0.0])
    busy=0.0; last=0; over=0.0
    for s,e,n in ev:
        t[n][0]+=1; t[n][1]+=e-s
        busy+=max(0,e-max(s,last)); last=max(last,e)
    span=ev[-1][1]-ev[0][0]
    print(name,"step ms",[round(x,2) for x in ms],"span/step",span/N/1e3,"busy/step",busy/N/1e3,"kernels/step",len(ev)/N)
    for n,(c,u) in sorted(t.items(),key=lambda x:-x[1][1])[:60]:
        print(f"{u/N/1e3:8.3f} ms {c/N:6.1f} x {u/c:8.1f} us  {n[:110]}")
    if len(sys.argv)>2:
        with open(sys.argv[2],"w") as f:
            first=ev[0][0]
            for s,e,n in ev: f.write(f"{s-first:.1f} {e-s:.1f} {n[:150]}\n")
