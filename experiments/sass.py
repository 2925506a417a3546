import sys, subprocess, tempfile, re
from pathlib import Path
exec(open('/tmp/comp.py').read().split("src=Source")[0])
import triton
exe=str(Path(triton.__file__).parent/"backends/nvidia/bin/nvdisasm")
k=compiled(Source(Path(sys.argv[1])),names[sys.argv[2]],"sm_90a")
b=next(getattr(k,a) for a in ("cubin","image","binary") if hasattr(k,a))
Path("/tmp/k.cubin").write_bytes(b if isinstance(b,bytes) else Path(b).read_bytes())
out=subprocess.run([exe,"-c","/tmp/k.cubin"],capture_output=True,text=True).stdout
Path("/tmp/k.sass").write_text(out)
L=[l for l in out.splitlines() if re.search(r"/\*[0-9a-f]{4,5}\*/",l) or l.startswith(".L")]
for i,l in enumerate(L):
    if re.search(r"STL|LDL",l): print(i,l[:90])
print(len(L),"HGMMA at",[i for i,l in enumerate(L) if "HGMMA" in l][::12])
print("branches",[(i,re.search(r"`\((\.L\w+)\)",l).group(1)) for i,l in enumerate(L) if "BRA" in l and re.search(r"`\((\.L\w+)\)",l)][:0])
