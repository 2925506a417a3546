import subprocess, tempfile, torch, triton, sys, re
from triton.runtime import driver
import rooftile.ops.attention_decode.api
from rooftile.core.kernel import OPS
from rooftile.workbench import dry
from rooftile.workbench.explain import blank
driver.set_active(dry.StandIn(90))
from pathlib import Path
from rooftile.ops.attention_decode import triton_kernels as tk
tool=Path(triton.__file__).parent/"backends"/"nvidia"/"bin"/"cuobjdump"
loaded=dry._Utilities.load_binary
def load_binary(self, name, cubin, *rest):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin); f.flush()
        res=subprocess.run([str(tool),"-res-usage",f.name],capture_output=True,text=True).stdout
        sass=subprocess.run([str(tool),"-sass",f.name],capture_output=True,text=True).stdout
    print(name, re.findall(r"REG:\d+|STACK:\d+|LOCAL:\d+",res), "lines",sass.count(";"), "PF", re.findall(r"\w*CCTL[.\w]*", sass))
    Path(f"/tmp/{name}.sass").write_text(sass)
    return loaded(self,name,cubin,*rest)
dry._Utilities.load_binary=load_binary
op=OPS["attention_decode"]
for c in op.spec.cases:
    if "bench" not in c.use: continue
    call=blank(op.spec,c,"meta"); print(str(c)[:100], tk.pick(call)); 
    op.kernel("triton").bound(tk.pick(call))(*call.values())
