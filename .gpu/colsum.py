import torch, itertools
from rooftile.core import timing
from rooftile.ops.gemm import triton_kernels as t
from rooftile.ops._shared.launch import cdiv, launch
d=torch.device("cuda",0)
def cs(x,chunks,bm,bn,w,bm2=16):
    m,n=x.shape
    out=torch.empty(n,dtype=x.dtype,device=x.device); part=torch.empty(chunks,n,dtype=torch.float32,device=x.device)
    launch(t._column_sum,(cdiv(n,bn),chunks),x,part,m,n,cdiv(m,chunks),*x.stride(),BLOCK_M=bm,BLOCK_N=bn,num_warps=w)
    launch(t._column_sum,(cdiv(n,64),1),part,out,chunks,n,chunks,n,1,BLOCK_M=bm2,BLOCK_N=64,num_warps=4)
    return out
for n in (768,2304,3072):
    x=torch.randn(32768,n,device=d,dtype=torch.bfloat16)
    v={"torch":lambda:x.sum(0),"now":lambda:t.column_sum(x)}
    for c,bm,bn,w in itertools.product((64,128,256),(32,64),(64,128,256),(4,8)):
        v[f"{c} {bm} {bn} {w}"]=lambda c=c,bm=bm,bn=bn,w=w:cs(x,c,bm,bn,w,64)
    r=compare=timing.compare(v,d,budget_ms=8)
    print(n,[(k,round(q.us,1)) for k,q in sorted(r.timings.items(),key=lambda i:i[1].us)[:5]],"torch",round(r.timings["torch"].us,1),"now",round(r.timings["now"].us,1), "floor", x.nbytes/4.2e6)
