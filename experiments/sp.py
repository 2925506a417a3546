import sys, subprocess, re
from pathlib import Path
from rooftile.cuda.source import Source
import triton
from rooftile.ops.attention import cuda_kernels
exec([l for l in open('/work/main/.gpu/comp.py').read().split('src=Source')][0])
exe=str(Path(triton.__file__).parent/"backends/nvidia/bin/nvdisasm")
k=compiled(cuda_kernels.V5,sys.argv[1],"sm_90a")
b=next(getattr(k,a) for a in ("cubin","image","binary") if hasattr(k,a))
Path("/tmp/k.cubin").write_bytes(b if isinstance(b,bytes) else Path(b).read_bytes())
out=subprocess.run([exe,"-c","/tmp/k.cubin"],capture_output=True,text=True).stdout
Path("/tmp/k.sass").write_text(out)
L=[l for l in out.splitlines() if re.search(r"/\*[0-9a-f]{4,5}\*/",l) or l.startswith(".L")]
for i,l in enumerate(L):
    if re.search(r"STL|LDL|USETMAXREG|UBLKRED|UTMALDG|NANOSLEEP|ATOM|RED",l): print(i,l[:100])
H=[i for i,l in enumerate(L) if "HGMMA" in l]
print(len(L),"HGMMA",H[0],H[-1])
