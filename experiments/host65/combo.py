import ctypes, time, torch, torch.nn.functional as F, rooftile
from rooftile.core.kernel import OPS
from rooftile.cuda import launch as L
dev=torch.device("cuda")
fs={}
def go(fs,n=200,rounds=40):
    got={k:[] for k in fs}
    for f in fs.values():
        for _ in range(200): f()
    torch.cuda.synchronize()
    for _ in range(rounds):
        for k,f in fs.items():
            s=time.perf_counter()
            for _ in range(n): f()
            got[k].append((time.perf_counter()-s)/n*1e6); torch.cuda.synchronize()
    for k,v in got.items(): v.sort(); print(f"{k:40s} {v[len(v)//5]:6.2f} {v[len(v)//2]:6.2f}",flush=True)
with torch.no_grad():
    x=torch.randn(64,1024,device=dev).bfloat16()
    for _ in range(20): rooftile.gelu(x,"tanh"); rooftile.softmax(x)
    op=OPS["gelu"]; k=op._known.calls[0]; rep=k.__globals__["run"]; g=rep.__globals__; empty=g["empty"]
    print({a:b for a,b in g.items() if not a.startswith("__")})
    ent=[e for e in L._entries.values() if "gelu" in e.parsed.instance][0]
    out=torch.empty_like(x); s=torch._C._cuda_getCurrentRawStream(0); o,i=out.data_ptr(),x.data_ptr(); n=x.numel(); grid=n//(8*128)
    again=ent.again; D=torch._C._cuda_getDevice; ST=torch._C._cuda_getCurrentRawStream; M=torch._C._len_torch_dispatch_stack; bf=torch.bfloat16
    def a1(): again(grid,1,1,128,1,1,0,s,o,i,n)
    def a2():
        t=empty((64,1024),(1024,1),bf); again(grid,1,1,128,1,1,0,s,t.data_ptr(),i,n); return t
    def a3():
        t=empty((64,1024),(1024,1),bf); return t
    def a4(x):
        if D()!=0 or M(): return None
        q=ST(0); t=empty((64,1024),(1024,1),bf); again(grid,1,1,128,1,1,0,q,t.data_ptr(),x.data_ptr(),n); return t
    ring=[None]*8; c=[0]
    def a5():
        t=empty((64,1024),(1024,1),bf); again(grid,1,1,128,1,1,0,s,t.data_ptr(),i,n); c[0]=(c[0]+1)&7; ring[c[0]]=t
    def a6():
        again(grid,1,1,128,1,1,0,s,o,i,n); t=empty((64,1024),(1024,1),bf); return t
    b=ent._buffer(); ent.layout.pack_into(b[0],0,grid,1,1,128,1,1,0,s,0,0,o,i,n); ex=L.libcuda().cuLaunchKernelEx; fn=ent.function
    def a7(): ex(b[1],fn,b[2],None)
    def a8():
        t=empty((64,1024),(1024,1),bf); ex(b[1],fn,b[2],None); return t
    st=torch._C._StaticCudaLauncher; f=fn.value
    def a9():
        t=empty((64,1024),(1024,1),bf); st._launch_kernel(f,grid,1,1,4,0,"OOl",(t.data_ptr(),i,n),s); return t
    go({"again":a1,"empty":a3,"empty+again":a2,"again+empty":a6,"ring of 8":a5,"as replay":lambda: a4(x),"ex":a7,"empty+ex":a8,"empty+static":a9,"replay":lambda: rep(x,"tanh"),"known":lambda: k(x,"tanh"),"op":lambda: op(x,"tanh"),"api":lambda: rooftile.gelu(x,"tanh"),"F.gelu":lambda: F.gelu(x,approximate="tanh"),"F.gelu out":lambda: torch._C._nn.gelu(x,approximate="tanh",out=out),"x.clone":lambda: x.clone()})
