import sys,torch
mode=sys.argv[1]
if mode=="triton":
    from rooftile.workbench import interpreter
import rooftile
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
for bits in (16,8):
  for amp in (1e2,1e3,3e3,1e4):
    torch.manual_seed(0)
    B,T,H,G,D,S=2,1,4,2,128,70
    dt=torch.float16
    q=(torch.randn(B,T,H,D)*amp).to(dt); k=torch.randn(B,S,G,D)*(amp if bits==16 else 100); v=torch.randn(B,S,G,D)
    scale=D**-.5 if bits==16 else D**-.5*(amp/100)
    n=torch.full((B,),S,dtype=torch.int32)
    if bits==16: k,v=k.to(dt),v.to(dt); call=dict(q=q,k_cache=k,v_cache=v,lengths=n,block_table=None,sinks=None,scale=scale,window=0,softcap=0.); op=OPS["attention_decode"]; kd,vd=k,v
    else: k,v=(x.clamp(-448,448).to(torch.float8_e4m3fn).view(torch.uint8) for x in (k,v)); call=dict(q=q,k_cache=k,v_cache=v,lengths=n,k_scale=None,v_scale=None,block_table=None,sinks=None,scale=scale,window=0,softcap=0.); op=OPS["attention_decode_e4m3"]
    want=op.kernel("reference").run(*call.values())
    for kern in op.kernels:
        if (mode=="triton")!=kern.name.startswith("triton") or kern.name=="triton.float32": continue
        with simulator.active():
            if kern.objection(call): print(kern.objection(call)); continue
            c=kern.configs[0] if kern.configs else None
            out,lse=kern.run(*call.values(),config=c) if c else kern.run(*call.values())
        print(bits,amp,kern.name,"bad rows",int((~((out-want[0]).abs()<.05).all(-1)).sum()),"of",B*T*H,"nonfinite",int((~out.isfinite()).sum()),"largest lse %.2g"%float(want[1].abs().max()), out.flatten()[:3].tolist(), want[0].flatten()[:3].tolist())
