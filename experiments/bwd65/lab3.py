"""v5_hopper: what lies between a step's last product and the next one's first. Predicted at T = 16384, D = 128, causal: v1 1 %, v10 2 %, v13 3 %; all others 1 to 3 %."""
import sys, time, torch, multiprocessing as mp
from pathlib import Path
H=Path(__file__).resolve().parent
sys.path.insert(0,str(H))
from rooftile.cuda import compile as compiler
from rooftile.cuda.source import Source
NAMES=["base","v1","v9","v10","v13","v14"]
INST=["attention_backward<__nv_bfloat16, 128, true, false, false, 80>","attention_backward<__nv_bfloat16, 128, false, false, false, 80>","attention_backward<__nv_bfloat16, 128, true, false>","attention_backward<__nv_bfloat16, 128, false, false>","attention_backward<__nv_bfloat16, 64, true, false>","attention_backward<__nv_bfloat16, 64, false, false>"]
MAIN="src/rooftile/ops/attention/cuda/v5_hopper_backward.cu"
def make(job):
    f,i=job
    compiler.compiled(Source(Path(f)),i,"sm_90a")
def main():
    import rooftile.ops.attention.api  # noqa
    from rooftile.core import timing
    from rooftile.core.kernel import OPS
    from rooftile.ops.attention import cuda_kernels as ck
    files={n:(H/"v"/f"{n}.cu") if n!="base" else Path(MAIN) for n in NAMES}
    with mp.get_context("spawn").Pool(14) as pool: pool.map(make,[(str(f),i) for f in files.values() for i in INST],chunksize=1)
    src={n:(ck.V5 if n=="base" else Source(f)) for n,f in files.items()}
    dev=torch.device("cuda"); t0=time.time(); fwd=OPS["attention"]; V5=ck.V5
    def call(b,t,h,d,causal):
        q,k,v,do=(torch.randn(b,t,h,d,device=dev).bfloat16() for _ in range(4)); out,lse=fwd.launch(q,k,v,causal,d**-.5)[:2]
        return do,q,k,v,out,lse,causal,d**-.5
    def with_(c,n):
        def run():
            ck.V5=src[n]
            try: return ck.hopper(*c)
            finally: ck.V5=V5
        return run
    for name,c in (("16384 D128 causal",(1,16384,16,128,True)),("16384 D128 full",(1,16384,16,128,False)),("4096 D128 causal",(4,4096,16,128,True)),("4096 D128 full",(4,4096,16,128,False)),("1024 D128 causal",(16,1024,16,128,True)),("1024 D128 full",(16,1024,16,128,False)),("4096 D64 causal",(4,4096,32,64,True)),("4096 D64 full",(4,4096,32,64,False)),("1024 D64 causal",(16,1024,32,64,True)),("16384 D64 causal",(1,16384,32,64,True)),("1000 D128 causal",(3,1000,4,128,True))):
        a=call(*c); ref=with_(a,"base")(); bad=[]
        for n in NAMES[1:]:
            got=with_(a,n)()
            e=[float((x.float()-y.float()).norm()/y.float().norm()) for x,y in zip(got,ref)]
            if not (e[1]==0 and e[2]==0 and e[0]<2e-3): bad.append((n,[f"{x:.1e}" for x in e]))
        r=timing.compare({n:with_(a,n) for n in NAMES},dev,budget_ms=300)
        b=r.timings["base"].us
        print(f"{name:18s} noise {r.noise:.3f}",{n:f"{x.us:.1f} {x.us/b:.4f}" for n,x in r.timings.items()},"WRONG" if bad else "right",bad,f"{time.time()-t0:.0f} s",flush=True)
if __name__=="__main__": main()
