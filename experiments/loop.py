import os, sys
os.environ["ROOFTILE_DRY_GPU"]="1"
import torch, re, subprocess, tempfile, collections
from rooftile.workbench import dry
from rooftile.core.kernel import OPS
import rooftile.ops
from rooftile.workbench.explain import blank
from pathlib import Path
import triton
tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
saved=[]
orig=dry._Utilities.load_binary
def lb(self,name,cubin,shared,device):
    saved.append((name,cubin,shared)); return orig(self,name,cubin,shared,device)
dry._Utilities.load_binary=lb
opname, sub, cfg = sys.argv[1], sys.argv[2], eval(sys.argv[3]) if len(sys.argv)>3 else None
op=OPS[opname]; case=next(c for c in op.spec.cases if sub in c.id and 'bench' in c.use)
st=dry.StandIn(90)
from triton.runtime import driver
driver._active = st if not hasattr(driver,'set_active') else st
try: driver.set_active(st)
except Exception: pass
call=blank(op.spec,case,"meta")
k=op.kernel(os.environ.get("KERNEL","triton"))
c=cfg or k.heuristic(call); print(case.id[:80], c)
k.bound(c,save=False)(*call.values())
for name,cubin,shared in saved:
    if 'split' not in name: continue
    f='/tmp/dec.cubin'; open(f,'wb').write(cubin)
    sass=subprocess.run([str(tool),"-sass",f],capture_output=True,text=True).stdout
    ins=[(int(a,16),t.strip()) for a,t in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);",sass)]
    open('/tmp/dec.sass','w').write('\n'.join(f"{a:05x} {t}" for a,t in ins))
    loops=[]
    for a,t in ins:
        m=re.search(r"BRA\S*\s+(?:\S+,\s*)?(0x[0-9a-f]+)",t)
        if m and int(m.group(1),16)<a: loops.append((int(m.group(1),16),a))
    print(name,'shared',shared,'instrs',len(ins),'loops',[(hex(x),hex(y),(y-x)//16) for x,y in loops])
    for x,y in loops[:1] if not os.environ.get("ALL") else loops:
        body=[t for a,t in ins if x<=a<=y]
        cnt=collections.Counter(re.sub(r"^@!?U?P\d+\s+","",t).split()[0].split('.')[0] for t in body)
        print(len(body),cnt.most_common(40))
