"""usage: ROOFTILE_DRY_GPU=1 comp.py MODULE 'dict(...)' ... : registers, spills, shared of each, for sm_90; KEEP=dir keeps cubins"""
import sys, os, time, importlib
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch, triton
from triton.runtime import driver
from rooftile.workbench import dry
import rooftile
st = dry.StandIn(int(os.environ.get("ARCH", "90"))); driver.set_active(st)
keep = os.environ.get("KEEP")
if keep:
    load = st.utils.load_binary
    def lb(name, cubin, shared, device):
        open(f"{keep}/{name}.cubin", "wb").write(cubin); return load(name, cubin, shared, device)
    st.utils.load_binary = lb
mod = importlib.import_module(sys.argv[1])
b, t, h, d = eval(os.environ.get("SHAPE", "(16,1024,16,128)"))
print(triton.__version__)
for text in sys.argv[2:]:
    kw = eval(text); causal = kw.pop("causal", False)
    x = [torch.empty(b, t, h, d, dtype=torch.bfloat16, device="meta") for _ in range(4)]
    st.log.clear(); t0 = time.time()
    try:
        if sys.argv[1].startswith("fw"): mod.attention(*x[:3], causal, d ** -.5, **kw)
        else: mod.attention_backward(*x, x[0], torch.empty(b, h, t, device="meta"), causal, d ** -.5, **kw)
    except Exception as e: print(text, type(e).__name__, str(e)[:300]); continue
    print(text, [(r["function"], r["registers"], r["spill_bytes"], r["shared_bytes"]) for r in st.log], f"{time.time()-t0:.1f}s", flush=True)
