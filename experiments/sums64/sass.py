import sys,re,json,subprocess,glob
from pathlib import Path
from rooftile.cuda.compile import compiled
from rooftile.cuda.source import Source
dis=glob.glob('/work/main/.venv/lib/python3*/site-packages/triton/backends/nvidia/bin/nvdisasm')[0]
c=compiled(Source(Path(sys.argv[1]).resolve()),sys.argv[2],"sm_90a")
print({k:getattr(c,k) for k in dir(c) if k in ('registers','spill_bytes','shared_bytes')})
body=c.image if hasattr(c,'image') else c.cubin
p=Path('/tmp/ds/s64_x.cubin'); p.write_bytes(body)
out=subprocess.run([dis,'-c',str(p)],capture_output=True,text=True).stdout
for l in out.splitlines():
    m=re.match(r'^(\.L\S+):',l)
    if m: print(m.group(1))
    m=re.search(r'/\*([0-9a-f]{4,5})\*/\s+(.*?);',l)
    if m: print(m.group(1),m.group(2))
