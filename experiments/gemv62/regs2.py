import sys; sys.path.insert(0, ".gpu/gemv62")
import lab2 as lab
lab.tools()
from concurrent.futures import ThreadPoolExecutor
def one(j):
    try: c = lab.compiled(*j, "sm_90a"); return j[0].path.stem, j[1], c.registers, c.spill_bytes, c.shared_bytes, c.loss
    except Exception as e: return j[0].path.stem, j[1], type(e).__name__, str(e)[:300]
for j in sorted(set(lab.jobs()), key=lambda j: (j[0].path.stem, j[1])): print(*one(j), flush=True)
