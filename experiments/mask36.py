import torch, os
from rooftile.core.kernel import OPS
import rooftile.ops.attention.api
F,Bk=OPS["attention_options"],OPS["attention_options_backward"]
import torch.nn.functional as tF
flush=torch.empty(256<<20,dtype=torch.uint8,device="cuda")
def time(fs,n=8):
    t=[[] for _ in fs]
    for r in range(n):
        for i,f in enumerate(fs):
            flush.zero_(); a,b=torch.cuda.Event(True),torch.cuda.Event(True); a.record(); f(); b.record(); torch.cuda.synchronize(); t[i].append(a.elapsed_time(b)*1e3)
    return [sorted(x)[len(x)//2] for x in t]
for (b,t,h,d,mh,kind) in ((4,4096,16,128,16,"rand"),(4,4096,16,128,1,"rand"),(4,4096,16,64,1,"rand"),(4,4096,16,128,1,"doc"),(4,4096,16,64,1,"doc"),(8,1024,16,64,1,"pad")):
    torch.manual_seed(0)
    q,k,v,do=(torch.randn(b,t,h,d,device="cuda",dtype=torch.bfloat16) for _ in range(4))
    if kind=="rand": m=torch.rand(b,mh,t,t,device="cuda")<.8
    elif kind=="doc": 
        i=torch.arange(t,device="cuda")//1024; m=(i[:,None]==i[None,:])[None,None].expand(b,1,t,t).contiguous()
    else: m=(torch.arange(t,device="cuda")<t*3//4)[None,None,None,:].expand(b,1,t,t).contiguous()
    m=m.expand(b,h,t,t)
    none=(None,)*3
    fa=(q,k,v,None,None,None,m,None,d**-.5,-1,-1,0.0,0.0,False)
    out,lse=F.kernel("triton").bound(F.kernel("triton").heuristic(dict(zip(F.names,fa))))(*fa)
    ba=(do,torch.zeros_like(lse),q,k,v,None,None,None,m,None,out,lse,d**-.5,-1,-1,0.0,0.0,False)
    fs=[];names=[]
    for n in ("triton","gluon" if d==64 else "gluon.wide"):
        kk=F.kernel(n); call=dict(zip(F.names,fa)); kb=kk.bound(kk.heuristic(call)); fs.append(lambda kb=kb: kb(*fa)); names.append("f."+n)
    for n in ("triton","cuda.v5_hopper","cuda.v5_hopper_ordered"):
        kk=Bk.kernel(n); call=dict(zip(Bk.names,ba)); kb=kk.bound(kk.heuristic(call)) if kk.configs else kk.run; fs.append(lambda kb=kb: kb(*ba)); names.append("b."+n)
    fs.append(lambda: F.kernel("gluon" if d==64 else "gluon.wide").bound(F.kernel("gluon" if d==64 else "gluon.wide").heuristic(dict(zip(F.names,fa))))(*fa[:6],None,*fa[7:])); names.append("f.nomask")
    fs.append(lambda: Bk.kernel("cuda.v5_hopper").run(*ba[:8],None,*ba[9:])); names.append("b.nomask")
    got=fs[1](); g2=fs[3]()
    ref=fs[2]()
    err=[float((a.float()-b_.float()).abs().max()) for a,b_ in zip(got,(out,lse))]+[float((a.float()-b_.float()).abs().max()/b_.float().abs().max()) for a,b_ in zip(g2[:3],ref[:3])]
    from rooftile.ops.attention.cuda_kernels import packed_bits
    from rooftile.ops.attention.gluon_options_launchers import packed_bits as pf
    fs+= [lambda: packed_bits(m,8192//d,2*t,2*t), lambda: pf(m)]; names+=["pack.b","pack.f"]
    qt,kt,vt=(x.transpose(1,2).detach().requires_grad_() for x in (q,k,v)); 
    fs.append(lambda: tF.scaled_dot_product_attention(qt.detach(),kt.detach(),vt.detach(),attn_mask=m)); names.append("f.torch")
    o=tF.scaled_dot_product_attention(qt,kt,vt,attn_mask=m); dt=do.transpose(1,2)
    fs.append(lambda: torch.autograd.grad(o,(qt,kt,vt),dt,retain_graph=True)); names.append("b.torch")
    for f in fs: f(); f()
    print((b,t,h,d,mh,kind),[f"{e:.2g}" for e in err]," ".join(f"{n} {x:.0f}" for n,x in zip(names,time(fs))),flush=True)
