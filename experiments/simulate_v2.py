import torch, sys
from rooftile.cuda import simulator
from rooftile.ops.attention_decode import cuda_kernels as ck
from rooftile.ops.attention_decode.reference import attention_decode as ref
from rooftile.core.kernel import OPS
import rooftile.ops.attention_decode.api
int32=lambda *x: torch.tensor(x,dtype=torch.int32)
torch.manual_seed(0)
def go(b,t,h,g,d,lengths,cache,table=None,sinks=None,window=0,cap=0.0,cfg=None,dt=torch.float16):
    q,(k,v)=torch.randn(b,t,h,d).to(dt),(torch.randn(*cache,g,d).to(dt) for _ in range(2))
    cfg={"heads":max(n for n in (1,2,4,8) if g%n==0),"stages":3,**(cfg or {})}
    call=dict(q=q,k_cache=k,v_cache=v,lengths=lengths,block_table=table,sinks=sinks,scale=0.2,window=window,softcap=cap)
    with simulator.active("checks"):
        why=ck._refuse_rows(call)
        assert why is None, why
        out,lse=ck._rows(q,k,v,lengths,table,sinks,0.2,window,cap,config=cfg)
    w,wl=ref(q.double(),k.double(),v.double(),lengths,table,sinks,0.2,window,cap)
    print((out.double()-w).abs().max().item(), (lse.double()-wl)[wl.isfinite()].abs().max().item() if wl.isfinite().any() else wl, flush=True)
go(1,1,4,1,64,int32(70),(1,80))
go(1,1,4,1,128,int32(70),(1,80))
go(2,3,8,2,64,int32(45,1),(2,100),window=20,cap=2.0)
go(1,4,4,1,64,int32(150),(1,150),sinks=torch.randn(4),dt=torch.bfloat16)
go(2,1,2,1,64,int32(33,17),(6,16),int32(0,5,2,1,3,4).view(2,3))
go(1,5,3,1,64,int32(150),(1,150),cfg={"stages":3})
go(1,1,8,8,64,int32(70),(1,80),cfg={"stages":2})
go(1,2,8,4,64,int32(170),(1,180))
go(2,1,16,8,128,int32(33,17),(6,16),int32(0,5,2,1,3,4).view(2,3),sinks=torch.randn(16))

from rooftile.ops.attention_decode.reference import attention_decode_e4m3 as ref8
def go8(b,t,h,g,d,lengths,cache,table=None,ks=True,heads=None,dt=torch.bfloat16,window=0):
    q=torch.randn(b,t,h,d).to(dt); k,v=(torch.randn(*cache,g,d).to(torch.float8_e4m3fn).view(torch.uint8) for _ in range(2))
    s1,s2=(torch.rand(g)+.5,torch.rand(g)+.5) if ks else (None,None)
    args=(q,k,v,lengths,s1,s2,table,None,0.2,window,0.0)
    with simulator.active("checks"):
        out,lse=ck._rows_e4m3(*args,config={"heads":heads or max(n for n in (1,2,4,8) if g%n==0),"stages":3})
    w,wl=ref8(q.double(),*args[1:])
    print("8:",(out.double()-w).abs().max().item(), (lse.double()-wl).abs().max().item(), flush=True)
go8(1,1,4,1,64,int32(70),(1,80))
go8(1,1,4,1,128,int32(70),(1,80),dt=torch.float16)
go8(2,2,8,4,128,int32(33,17),(6,16),int32(0,5,2,1,3,4).view(2,3))
go8(1,3,8,8,64,int32(200),(1,200),ks=False,heads=2,window=50)
