import sys
from pathlib import Path
from rooftile.cuda.compile import compiled
from rooftile.cuda.source import Source
for a in sys.argv[1:]:
    n, i = a.split(":", 1)
    try:
        c = compiled(Source(Path(n).resolve()), i, "sm_90a"); print(n, i, c.registers, c.spill_bytes, c.shared_bytes)
    except Exception as e: print(n, i, str(e)[:600])
