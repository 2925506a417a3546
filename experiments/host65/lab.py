import ctypes, struct, time, torch, torch.nn.functional as F, rooftile
from rooftile.core.kernel import OPS
from rooftile.core.driver import libcuda
from rooftile.cuda import launch as L
dev=torch.device("cuda")
def t(f,n=200,rounds=60):
    for _ in range(300): f()
    torch.cuda.synchronize(); got=[]
    for _ in range(rounds):
        s=time.perf_counter()
        for _ in range(n): f()
        got.append((time.perf_counter()-s)/n); torch.cuda.synchronize()
    got.sort(); return got[len(got)//5]*1e6
def show(name,f):
    try: print(f"{name:44s} {t(f):6.2f}",flush=True)
    except Exception as e: print(name,type(e).__name__,str(e)[:150],flush=True)
with torch.no_grad():
    x=torch.randn(64,1024,device=dev).bfloat16(); w=torch.ones(1024,device=dev).bfloat16()
    show("python lambda",lambda: None)
    show("F.layer_norm",lambda: F.layer_norm(x,(1024,),w,w))
    show("torch.softmax",lambda: torch.softmax(x,-1)); show("rooftile.softmax",lambda: rooftile.softmax(x))
    show("F.gelu",lambda: F.gelu(x,approximate="tanh")); show("rooftile.gelu",lambda: rooftile.gelu(x,"tanh"))
    show("x+x",lambda: x+x); show("rooftile.vector_add",lambda: rooftile.vector_add(x,x))
    show("rooftile.residual_add",lambda: rooftile.residual_add(x,x))
    show("torch.log_softmax",lambda: torch.log_softmax(x,-1)); show("rooftile.log_softmax",lambda: rooftile.log_softmax(x))
    show("rooftile.array_increment",lambda: rooftile.array_increment(x) if hasattr(rooftile,'array_increment') else None)
    op=OPS["gelu"]; k=op._known.calls[0]
    show("op",lambda: op(x,"tanh")); show("known",lambda: k(x,"tanh"))
    rep=k.__globals__["run"]; show("replay",lambda: rep(x,"tanh"))
    g=rep.__globals__; empty=g["empty"]
    show("empty_strided_cuda",lambda: empty((64,1024),(1024,1),torch.bfloat16))
    show("empty_like",lambda: torch.empty_like(x))
    show("stream",lambda: torch._C._cuda_getCurrentRawStream(0)); show("getDevice",lambda: torch._C._cuda_getDevice())
    chk=k.__globals__["check"]; show("guards.check",lambda: chk(x))
    show("is_nested",lambda: x.is_nested); show("data_ptr",lambda: x.data_ptr()); show("is_compiling",lambda: torch.compiler.is_compiling())
    ent=[e for e in L._entries.values() if "gelu" in e.parsed.instance][0]
    out=torch.empty_like(x); s=torch._C._cuda_getCurrentRawStream(0)
    o,i=out.data_ptr(),x.data_ptr(); n=x.numel(); block=128; grid=n//(8*block)
    print(ent.parsed.instance,"early",ent.early)
    show("entry.again",lambda: ent.again(grid,1,1,block,1,1,0,s,o,i,n))
    drv=libcuda(); ex=drv.cuLaunchKernelEx
    def prepared(early):
        b=ent._buffer(); ent.layout.pack_into(b[0],0,grid,1,1,block,1,1,0,s,L._EARLY_AT if early else 0,int(early),o,i,n)
        return lambda: ex(b[1],ent.function,b[2],None)
    show("cuLaunchKernelEx, no attribute",prepared(False)); show("cuLaunchKernelEx, early",prepared(True))
    b=ent._buffer(); ent.layout.pack_into(b[0],0,grid,1,1,block,1,1,0,s,0,0,o,i,n)
    ck=drv.cuLaunchKernel; S=ctypes.c_void_p(s)
    show("cuLaunchKernel by ctypes",lambda: ck(ent.function,grid,1,1,block,1,1,0,S,b[2],None))
    try:
        st=torch._C._StaticCudaLauncher; f=ent.function.value
        show("static launcher",lambda: st._launch_kernel(f,grid,1,1,block//32,0,"OOl",(o,i,n),s))
        show("static launcher, tensors",lambda: st._launch_kernel(f,grid,1,1,block//32,0,"OOl",(out,x,n),s))
    except Exception as e: print("static",e)
    show("out.copy_(x)",lambda: out.copy_(x)); show("F.gelu out=",lambda: torch._C._nn.gelu(x,approximate="tanh",out=out))
    show("pack_into",lambda: ent.layout.pack_into(b[0],0,grid,1,1,block,1,1,0,s,0,0,o,i,n))
    show("dummy ctypes (cuDriverGetVersion)",(lambda v=ctypes.c_int(): drv.cuDriverGetVersion(ctypes.byref(v))))
