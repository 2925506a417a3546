import os,sys
from pathlib import Path
os.environ["ROOFTILE_DRY_GPU"]="1"
from rooftile.workbench import dry
import torch
from triton.runtime import driver
orig=dry._Utilities.load_binary
n=[0]
def lb(self,name,cubin,shared,device):
    n[0]+=1; Path(f"/tmp/sass/{name}.{n[0]}.cubin").write_bytes(cubin); print(n[0],name,shared); return orig(self,name,cubin,shared,device)
dry._Utilities.load_binary=lb
os.makedirs('/tmp/sass',exist_ok=True)
from rooftile.ops.attention import gluon_launchers as gl
st=dry.StandIn(90); driver.set_active(st)
k=gl.KERNELS[0]
from rooftile.workbench.explain import operator
op=operator('attention')
for T,causal in ((16384,True),(16384,False),(4096,True)):
    q=torch.empty(1,T,32,64,dtype=torch.bfloat16,device='meta')
    call=dict(q=q,k=q,v=q,causal=causal,scale=.125)
    k.bound(k.heuristic(call))(*call.values())
print(st.log)
