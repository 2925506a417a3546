import sys,torch,statistics,concurrent.futures as cf
from pathlib import Path
import torch.nn.functional as Fn
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
from rooftile.ops._shared.hopper_products import along, across, box, walk, form, BLOCK_M
AHEAD=4*8*32*16
def cfg(n=256,k=64,s=3,l=0,g=8,c=2): return {"BLOCK_N":n,"BLOCK_K":k,"STAGES":s,"LAG":l,"GROUP":g,"CLUSTER":c}
def src(v): return Source(Path(".gpu/mlp43")/v/"v1_hopper.cu")
T="__nv_bfloat16"
def names(kind,c): 
    return {"mf":f"mlp_forward<{T}, Sloped<rooftile::GeluTanh>, {form(c)}>","mb":f"mlp_backward<{T}, Slope, {form(c)}>","gf":f"gated_forward<{T}, rooftile::Silu, {form(c)}>","gb":f"gated_backward<{T}, rooftile::Silu, {form(c)}>"}[kind]
def warm(a):
    v,kind,c=a
    try: k=compiled(src(v),names(kind,c),"sm_90a"); return None
    except Exception as e: return f"{v} {kind} {str(e)[:300]}"
SH={"mf":(32768,3072,768),"mb":(32768,3072,768),"gf":(16384,8192,2048),"gb":(16384,8192,2048)}
dev="cuda"
def setup():
    torch.manual_seed(0); D={}
    for kind,(m,f,k) in SH.items():
        parts=2 if kind=="gf" else 1
        x=torch.randn(m,k,device=dev,dtype=torch.bfloat16); w=torch.randn(*( (parts*f,k) if kind in("mf","gf") else (k,f)),device=dev,dtype=torch.bfloat16)*k**-.5
        pad=256
        D[kind]=dict(x=x,w=w,b=torch.randn(f,device=dev,dtype=torch.bfloat16)*.1,o1=torch.empty(m+pad,f*(2 if kind in("gf","gb") else 1),device=dev,dtype=torch.bfloat16),o2=torch.empty(m+pad,f,device=dev,dtype=torch.bfloat16),
          kept=(torch.randn(m,f*(2 if kind=="gb" else 1),device=dev,dtype=torch.bfloat16) if kind in("mb","gb") else None),part=torch.empty(m//64+2,f,device=dev))
    return D
def call(D,v,kind,c):
    m,f,k=SH[kind]; d=D[kind]; s=src(v); n=names(kind,c)
    if kind=="mf": maps=along(d["x"],BLOCK_M,c),along(d["w"],box(c),c); return lambda: walk(s,n,c,d["x"],(m,f,k),(d["o1"],d["o2"],*maps,d["b"],f))
    if kind=="mb": maps=along(d["x"],BLOCK_M,c),across(d["w"],c); return lambda: walk(s,n,c,d["x"],(m,f,k),(d["o1"],d["part"],*maps,d["kept"]),AHEAD)
    if kind=="gf": maps=along(d["x"],BLOCK_M,c),along(d["w"],box(c,2),c); return lambda: walk(s,n,c,d["x"],(m,f,k),(d["o1"],d["o2"],*maps,1),parts=2)
    maps=along(d["x"],BLOCK_M,c),across(d["w"],c); return lambda: walk(s,n,c,d["x"],(m,f,k),(d["o1"],d["o2"],*maps,d["kept"]),AHEAD)
def main(jobs,clks):
    D=setup()
    with cf.ProcessPoolExecutor(16) as ex:
        for e in ex.map(warm,[(v,k,c) for v,k,c in jobs+clks]):
            if e: print(e)
    fl={k:2*m*f*kk*(2 if k=="gf" else 1) for k,(m,f,kk) in SH.items()}
    calls={}
    for v,k,c in jobs:
        try: calls[(v,k,form(c)+", g%d"%c["GROUP"])]=call(D,v,k,c)
        except Exception as e: print(v,k,str(e)[:200])
    for kind in SH:
        m,f,k=SH[kind]; d=D[kind]
        if kind in("mf","gf"): calls[("cublas",kind,"")]=(lambda d=d: torch.matmul(d["x"],d["w"].t()))
        else: calls[("cublas",kind,"")]=(lambda d=d: torch.matmul(d["x"],d["w"]))
    for cl in calls.values():
        cl()
    torch.cuda.synchronize()
    R={k:[] for k in calls}
    import random
    ks=list(calls)
    for rnd in range(6):
        random.seed(rnd); random.shuffle(ks)
        for key in ks:
            cl=calls[key]; n=12
            for _ in range(4): cl()
            a,b=torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True); a.record()
            for _ in range(n): cl()
            b.record(); b.synchronize(); R[key].append(a.elapsed_time(b)/n*1e3)
    for kind in SH:
        for key in sorted(R): 
            if key[1]==kind: 
                t=statistics.median(R[key]); print(f"{kind} {key[0]:12s} {key[2]:18s} {t:8.1f} us  {fl[kind]/t/1e6:6.0f} TF  min {min(R[key]):.1f}")
    for v,kind,c in clks:
        cl=call(D,v,kind,c)
        for _ in range(20): cl()
        torch.cuda.synchronize()
        m,f,k=SH[kind]; d=D[kind]; o=d["o1"] if kind=="mb" else d["o2"]
        t=o.flatten()[m*f:m*f+132*48*4].view(torch.int64).view(132,4,12).float()
        mm=t.mean(0)/1e3; tiles=m/128*f/(c["BLOCK_N"]//(2 if kind=="gf" else 1))/132
        print(kind,v,form(c),"tiles/block %.1f"%tiles,"kclk/tile; total",[round(x/tiles,2) for x in mm[:3,11].tolist()])
        for w in range(3): print("   wg",w,["%.2f"%(x/tiles) for x in mm[w,:9].tolist()])
def check(D,v,c):
    bad=[]
    for kind in SH:
        m,f,k=SH[kind]; d=D[kind]; d["o1"].zero_(); d["o2"].zero_(); d["part"].zero_()
        call(D,v,kind,c)(); torch.cuda.synchronize()
        x,w=d["x"].float(),d["w"].float(); torch.backends.cuda.matmul.allow_tf32=True
        if kind=="mf":
            pre=x@w.t()+d["b"].float(); got=d["o2"].flatten()[:m*f].view(m,f); want=Fn.gelu(pre,approximate="tanh")
        elif kind=="gf":
            pre=x@w.t(); got=d["o2"].flatten()[:m*f].view(m,f); want=Fn.silu(pre[:,:f])*pre[:,f:]
        elif kind=="mb":
            got=d["o1"].flatten()[:m*f].view(m,f); want=(x@w)*d["kept"].float()
            ps=d["part"][:m//128].sum(0); bad.append(("part",(ps-got.float().sum(0)).abs().max().item()))
        else:
            got=d["o1"].flatten()[:m*2*f].view(m,2*f)[:,f:]; want=(x@w)*Fn.silu(d["kept"].float()[:,:f])
        bad.append((kind,round((got.float()-want).abs().max().item(),4),round(want.abs().max().item(),2)))
    print("check",v,form(c),bad,flush=True)
if __name__=="__main__" and sys.argv[1]=="time":
    L={"mf":0,"mb":0,"gf":1,"gb":1}; G={"mf":8,"mb":8,"gf":16,"gb":16}
    A=[(v,k,cfg(c=1,l=L[k],g=G[k])) for k in SH for v in ("base","pf","pfall","stcs","pfstcs","nofin","pfnofin")]
    A+=[("pfwg",k,cfg(c=2,l=L[k],g=G[k])) for k in SH]
    A+=[("pf",k,cfg(c=1,l=l,g=g)) for k in SH for l,g in ((0,4),(0,16),(1,8),(1,32))]
    C=[(v,k,cfg(c=1,l=L[k],g=G[k])) for k in SH for v in ("clk","pfclk")]
    main(A,C)
