import torch, os
from rooftile.training.benchmark import _Contestant, GPT2_124M, WARMUP, _check, _tokens
from rooftile.training.config import TrainConfig
from torch.profiler import profile, ProfilerActivity
import sys
cfg=_check(TrainConfig(batch_size=32,context=1024,dtype="bfloat16",device="cuda",seed=0,steps=40,lr=3e-4,min_lr=3e-4,warmup=0,clip=0.0),GPT2_124M)
for name in sys.argv[1:]:
    one=_Contestant(name,GPT2_124M,cfg,_tokens(50304)); one.run(4)
    print(name, one.timed(10)[0])
    with profile(activities=[ProfilerActivity.CUDA,ProfilerActivity.CPU]) as p:
        one.run(2); torch.cuda.synchronize()
    ev=[(e.key,e.self_device_time_total/2e3,e.count/2) for e in p.key_averages() if e.self_device_time_total>0 and str(e.device_type).endswith("CUDA")]
    ev.sort(key=lambda e:-e[1]); print(name,"sum",round(sum(e[1] for e in ev),2))
    for k,t,c in ev[:36]: print(f"{t:8.3f} ms {c:6.1f}x {k[:110]}")
    del one; torch.cuda.empty_cache()
