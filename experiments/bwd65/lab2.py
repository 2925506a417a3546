"""Does a step's time depend on how many heads are dealt out together?"""
import sys
sys.argv=[sys.argv[0]]
src=open(__file__.replace("lab2","lab")).read(); i=src.index("for name,c,ms in"); exec(src[:i])
def waits(name,c,m,tog):
    real=with_
    def dealt(by,group,tiles,heads,near):
        far=tog*ck.cdiv(ck.LEAD,tog*tiles); return ck.Dealt(tog,far,far,tiles)
    keep=ck.dealt; ck.dealt=dealt
    try: stamps(f"{name} tog {tog}",c,m)
    finally: ck.dealt=keep
import os
c=call(1,16384,16,128,True)
for tog in (1,2,4,8,16): waits("causal",c,80,tog)
vs={f"tog {t}":with_(c,t) for t in (1,2,3,4,5,6,8,16)}
r=timing.compare(vs,dev,budget_ms=500); print({n:round(x.us,1) for n,x in r.timings.items()},flush=True)
f=call(1,16384,16,128,False)
for tog in (1,2,4,16): waits("full",f,80,tog)
vs={f"full tog {t}":with_(f,t) for t in (1,2,4,16)}
r=timing.compare(vs,dev,budget_ms=500); print({n:round(x.us,1) for n,x in r.timings.items()},flush=True)
c=call(1,16384,64,128,True)
vs={f"64 heads tog {t}":with_(c,t) for t in (2,4,8,16,32)}
r=timing.compare(vs,dev,budget_ms=800); print({n:round(x.us,1) for n,x in r.timings.items()},f"{time.time()-t0:.0f} s",flush=True)
for tog in (4,16): waits("causal 64 heads",c,80,tog)
