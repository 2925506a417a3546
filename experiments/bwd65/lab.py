"""v5_hopper's gradient at T = 16384: what a tile's begin and end cost, and how many heads together."""
import sys, time, torch
from pathlib import Path
H=Path(__file__).resolve().parent
import rooftile.ops.attention.api  # noqa
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.cuda import compile as compiler
from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from rooftile.ops.attention import cuda_kernels as ck
S=Source(H/"stamped.cu")
if len(sys.argv)>1 and sys.argv[1]=="dry":
    for inst in ("attention_backward<__nv_bfloat16, 128, true, false, false, 80>","attention_backward<__nv_bfloat16, 128, true, false>","attention_backward<__nv_bfloat16, 128, false, false, false, 80>"):
        try:
            m=compiler.compiled(S,inst,"sm_90a"); print(inst,{k:getattr(m,k) for k in dir(m) if k in("registers","spill_bytes","spills","shared","local","static")})
        except Exception as e: print(inst,"ERR",str(e)[:600])
    sys.exit()
dev=torch.device("cuda"); t0=time.time()
fwd=OPS["attention"]; V5=ck.V5
def call(b,t,h,d,causal):
    q,k,v,do=(torch.randn(b,t,h,d,device=dev).bfloat16() for _ in range(4))
    out,lse=fwd.launch(q,k,v,causal,d**-.5)[:2]
    return do,q,k,v,out,lse,causal,d**-.5
orig_dealt,orig_q=ck.dealt,ck.queries
def with_(c,tog=None,m=None,src=None,back=None):
    def run():
        if tog:
            def dealt(by,group,tiles,heads,near):
                far=tog*ck.cdiv(ck.LEAD,tog*tiles); return ck.Dealt(tog,far,far,tiles)
            ck.dealt=dealt
        if m: ck.queries=lambda *a: m
        if src: ck.V5=src
        try: return ck.hopper(*c)
        finally: ck.dealt,ck.queries,ck.V5=orig_dealt,orig_q,V5
    return run
def stamps(name,c,m):
    go=with_(c,src=S,m=m)
    buf=torch.zeros(132*64*2*10,dtype=torch.int64,device=dev); real=ck.launch
    def wrapped(src,inst,grid,block,*a,**kw):
        a=list(a)
        if inst.startswith("attention_backward<"): a[10]=buf.view(torch.int32)
        return real(src,inst,grid,block,*a,**kw)
    ck.launch=wrapped
    try: go(); buf.zero_(); go()
    except Exception as e: print(name,type(e).__name__,str(e)[:300]); return
    finally: ck.launch=real
    torch.cuda.synchronize()
    a=buf.view(132,64,2,10).cpu().double(); ok=a[...,0]>0
    us=1/1755.0
    def q(x):
        if not x.numel(): return "none"
        x=x.flatten().sort()[0]
        return f"{x[len(x)//10]*us:.2f}/{x[len(x)//2]*us:.2f}/{x[len(x)*9//10]*us:.2f}"
    print("   raw",a[0,0,0].tolist(),a[0,1,0].tolist(),int((a!=0).sum()))
    both=ok&(a[...,6]>1)
    steps=a[...,6][both]; walk=(a[...,2]-a[...,1])[both]
    print(name,"tiles",int(ok[...,0].sum()),"a step",q(walk/steps),"wait k to walk",q((a[...,1]-a[...,0])[both]),"last dq",q((a[...,3]-a[...,2])[both]),"dk dv",q((a[...,4]-a[...,3])[both]),"round",q((a[...,5]-a[...,4])[both]))
    nxt=torch.roll(a,-1,1); has=(nxt[...,0]>0)&ok; has[:,-1]=False
    print("   round's end to next keys",q((nxt[...,0]-a[...,5])[has]),"walk's end to next walk",q((nxt[...,1]-a[...,2])[has]))
    end=a[:,:,0,5].max(1)[0]; beg=torch.where(ok[:,:,0],a[:,:,0,0],1e30).min(1)[0]
    print("   blocks' length",q((end-beg)), "tiles a block",ok[:,:,0].sum(1).min().item(),ok[:,:,0].sum(1).max().item(), "median step by length", [round(float((walk/steps)[(steps>l)&(steps<=r)].median())*us,3) if ((steps>l)&(steps<=r)).any() else None for l,r in ((1,8),(8,30),(30,60),(60,120),(120,210))])
for name,c,ms in (("16384 causal",call(1,16384,16,128,True),(80,64)),("16384 full",call(1,16384,16,128,False),(80,)),("4096 causal",call(4,4096,16,128,True),(64,80)),("1024 full",call(16,1024,16,128,False),(64,80))):
    for m in ms: stamps(f"{name} m{m}",c,m)
    vs={"now":with_(c),"now2":with_(c)}
    if "causal" in name: vs|={f"tog {t}":with_(c,t) for t in (2,4,8,16)}|{f"m{m}":with_(c,m=m) for m in (64,80)}
    r=timing.compare(vs,dev,budget_ms=500)
    print(name,f"noise {r.noise:.3f}",{n:round(x.us,1) for n,x in r.timings.items()},f"at {time.time()-t0:.0f} s",flush=True)
