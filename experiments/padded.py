import sys,time,multiprocessing as mp
def work(a):
    i,n,end=a
    from rooftile.workbench import gatekeeper as g; gate=g.gate
    from rooftile.core.kernel import OPS
    import rooftile
    ops=g.named([])
    pts=[p for p in gate.grid(ops,None,use="check") if p.variant=="padded"]
    kernels=sorted({(p.op.spec.name,p.kernel.name) for p in pts})
    mine={k for j,k in enumerate(kernels) if j%n==i}
    pts=[p for p in pts if (p.op.spec.name,p.kernel.name) in mine]
    r=g._run(pts,"cuda",None,time.monotonic()+end-time.time())
    return len(pts),[(v["op"],v["kernel"],v["case"],v["status"],v["message"][:200]) for v in r]
if __name__=="__main__":
    import collections
    end=time.time()+float(sys.argv[1]); n=15
    with mp.get_context("spawn").Pool(n) as pool: out=pool.map(work,[(i,n,end) for i in range(n)])
    c=collections.Counter(x[3] for _,r in out for x in r); print("padded",dict(c),"of",sum(k for k,_ in out))
    for _,r in out:
        for x in r:
            if x[3] in ("failed","error"): print(*x)
