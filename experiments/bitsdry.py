import subprocess, tempfile, torch, triton, sys
from triton.runtime import driver
from rooftile.core.kernel import OPS
from rooftile.workbench import dry
driver.set_active(dry.StandIn(90))
from pathlib import Path
tool=Path(triton.__file__).parent/"backends"/"nvidia"/"bin"/"cuobjdump"
loaded=dry._Utilities.load_binary
def load_binary(self, name, cubin, *rest):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin); f.flush()
        res=subprocess.run([str(tool),"-res-usage",f.name],capture_output=True,text=True).stdout
        sass=subprocess.run([str(tool),"-sass",f.name],capture_output=True,text=True).stdout
    import re
    print(name, re.findall(r"REG:\d+|STACK:\d+|LOCAL:\d+",res), "HGMMA",sass.count(" HGMMA"),"LDL",sass.count("LDL"),"STL",sass.count("STL"),"lines",sass.count(";"), "LDG",sass.count(" LDG"))
    Path(f"/tmp/{name}{sys.argv[1]}.sass").write_text(sass)
    return loaded(self,name,cubin,*rest)
dry._Utilities.load_binary=load_binary
d=int(sys.argv[1])
x=torch.empty(2,4096,4,d,dtype=torch.bfloat16,device="meta")
op=OPS["attention_options"]
kernel=op.kernel("gluon" if d==64 else "gluon.wide")
for m in (None, torch.empty(2,4,4096,4096,dtype=torch.bool,device="meta"), torch.empty(2,1,4096,4096,dtype=torch.bool,device="meta").expand(2,4,4096,4096)):
    call=dict(q=x,k=x,v=x,sinks=None,bias=None,constant_bias=None,mask=m,seed=None,scale=.1,left=-1,right=-1,softcap=0.,p=0.,deterministic=False)
    print(kernel.refuse(call))
    kernel.bound(kernel.heuristic(call))(*call.values())
