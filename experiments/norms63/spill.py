import sys; from pathlib import Path
from rooftile.cuda import compile as C; from rooftile.cuda.source import Source
p=sys.argv[1]
for i in sys.argv[2:]:
    m=C.compiled(Source(Path(p).resolve()),i,"sm_90a"); print(i,m.registers,m.spill_bytes)
