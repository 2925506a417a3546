import torch,statistics,random
from rooftile.ops.gemm import sums_kernels as s, cublaslt_kernels as lt
from rooftile.ops.gemm.triton_kernels import column_sum
from rooftile.ops._shared.products import product
def t(cl,n=10):
    for _ in range(3): cl()
    a,b=torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True); a.record()
    for _ in range(n): cl()
    b.record(); b.synchronize(); return a.elapsed_time(b)/n*1e3
for (m,f,k) in ((32768,2304,768),(32768,768,768),(32768,3072,768),(16384,3072,2048),(16384,4608,3584)):
    torch.manual_seed(0)
    g,x=torch.randn(m,f,device="cuda").bfloat16(),torch.randn(m,k,device="cuda").bfloat16()
    C={"vendor":lambda: (product(g.t(),x),column_sum(g)),"vendor dw":lambda: product(g.t(),x),"colsum":lambda: column_sum(g)}
    for c in s.CONFIGS: C[str(tuple(c.values()))]=lambda c=c: s.weight_gradient(g,x,c)
    w=g.float().t()@x.float(); ws=g.double().sum(0)
    for n in list(C)[3:]:
        dw,db=C[n](); print("  err",n,((dw.float()-w).abs().max()/w.abs().max()).item(),((db.double()-ws).abs().max()/ws.abs().max()).item(), "bitwise", all(torch.equal(a,b) for a,b in zip(C[n](),(dw,db))))
    R={n:[] for n in C}
    for r in range(8):
        ks=list(C); random.seed(r); random.shuffle(ks)
        for n in ks: R[n].append(t(C[n]))
    print((m,f,k),{n:round(statistics.median(v),1) for n,v in R.items()},flush=True)
