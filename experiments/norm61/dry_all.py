import sys; sys.path.insert(0, ".gpu/norm61")
from concurrent.futures import ThreadPoolExecutor
import torch, lab, make
lab.tools()
from rooftile.cuda import compile as compiler
from rooftile.cuda.launch import recording
jobs = []
for case, (m, n, names) in lab.CASES.items():
    a = tuple(t.to("meta") if torch.is_tensor(t) else t for t in lab.made(case, 2, n, "cpu"))
    a = tuple(torch.empty((m, *t.shape[1:]), dtype=t.dtype, device="meta") if torch.is_tensor(t) and t.dim() and t.shape[0] == 2 else t for t in a)
    for name in names:
        if name[0] == "triton" or "noadd" in name[0]: continue
        try:
            with recording() as seen: lab.run(case, name, a)
        except Exception as e: print(case, name, type(e).__name__, str(e)[:300]); continue
        jobs += [(case, name, s.source, s.instance, s) for s in seen if "backward" in s.instance]
def one(j):
    case, name, source, instance, s = j
    try: m = compiler.compiled(source, instance, "sm_90a"); return case, name, instance.split("false,")[-1] if case != "C" else "", m.registers, m.spill_bytes, getattr(s, "shared", None), getattr(s, "grid", None)
    except Exception as e: return case, name, str(e)[:300]
with ThreadPoolExecutor(2) as p:
    for r in p.map(one, jobs): print(*r, flush=True)
