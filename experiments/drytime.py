import os,sys,time
os.environ["ROOFTILE_DRY_GPU"]="1"
from rooftile.workbench import dry, check
import rooftile.ops, triton
from triton.runtime import driver
from collections import defaultdict
import triton.compiler.compiler as tc
times=[]
orig=dry._compile
def timed(st,op,k,case,every):
    t=time.time(); r=orig(st,op,k,case,every=every); times.append((time.time()-t,op.spec.name,k.name,len(r))); return r
dry._compile=timed
names=[o.spec.name for o in check.all_ops()]
arch=int(sys.argv[1]); names=sys.argv[2:] or names
t=time.time(); dry.compile_all(names,arch); print("total",time.time()-t)
for x in sorted(times,reverse=True)[:32]: print("%.2f %s %s %d"%x)
