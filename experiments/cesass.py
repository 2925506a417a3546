import sys,re,subprocess
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
import triton
exe=str(Path(triton.__file__).parent/"backends/nvidia/bin/nvdisasm")
def show(path,name):
    k=compiled(Source(Path(path)),name,"sm_90a")
    b=next(getattr(k,a) for a in ("cubin","image","binary") if hasattr(k,a))
    Path("/tmp/k.cubin").write_bytes(b if isinstance(b,bytes) else Path(b).read_bytes())
    out=subprocess.run([exe,"-c","/tmp/k.cubin"],capture_output=True,text=True).stdout
    print(name,k.registers,k.spill_bytes)
    return out
out=show(sys.argv[1],sys.argv[2]); Path(sys.argv[3]).write_text(out)
L=[l for l in out.splitlines() if re.search(r"/\*[0-9a-f]{4,5}\*/",l) or l.strip().startswith(".L")]
print(len(L)); 
for i,l in enumerate(L):
    if "MUFU.EX2" in l or "BRA" in l or l.strip().startswith(".L") or "LDGSTS" in l or "LDS.128" in l: print(i,re.sub(r"\s+"," ",l)[:90])
