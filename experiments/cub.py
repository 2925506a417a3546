"""cub.py OUT op case-substring config-json: SASS of what a launch compiles at sm_90."""
import os,sys,json,subprocess
os.environ["ROOFTILE_DRY_GPU"]="1"
from pathlib import Path
import triton
from triton.runtime import driver
from rooftile.workbench import dry
from rooftile.workbench.explain import blank, operator
out=Path(sys.argv[1]); out.mkdir(exist_ok=True,parents=True)
orig=dry._Utilities.load_binary
def lb(self,name,cubin,shared,device):
    f=out/f"{name}.cubin"; f.write_bytes(cubin)
    tool=Path(triton.__file__).parent/"backends/nvidia/bin/cuobjdump"
    s=subprocess.run([str(tool),"-sass",str(f)],capture_output=True,text=True).stdout
    lines=[l for l in s.splitlines() if "/*0" in l and ";" in l]
    print("==",name,len(lines))
    for i,l in enumerate(lines):
        if any(w in l for w in ("LDG","STG","BAR","BRA","EXIT","LDS","STS","SHFL","MUFU")): print(i,l.strip()[:90])
    return orig(self,name,cubin,shared,device)
dry._Utilities.load_binary=lb
st=dry.StandIn(90); driver.set_active(st)
op=operator(sys.argv[2]); k=op.kernel("triton")
case=[c for c in op.spec.cases if sys.argv[3] in c.id][0]
call=blank(op.spec,case,"meta")
cfg=json.loads(sys.argv[4]) if len(sys.argv)>4 else k.heuristic(call)
print(case.id,cfg); k.bound(cfg)(*call.values())
