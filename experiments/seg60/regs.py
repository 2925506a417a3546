import sys; from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
for a in sys.argv[2:]:
    c=compiled(Source(Path(sys.argv[1]).resolve()),a,"sm_90a"); print(a,c.registers,c.spill_bytes,c.shared_bytes,len(c.cubin)); Path("/tmp/ds/"+a.replace(" ","").replace("<","_").replace(">","").replace(",","_")+".cubin").write_bytes(c.cubin)
