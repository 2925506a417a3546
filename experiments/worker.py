"""One tree's side of turns.py: commands as JSON lines on stdin, answers as JSON lines on the real stdout."""
import json, os, sys, time
answers = os.fdopen(os.dup(1), "w"); os.dup2(2, 1)
import torch, rooftile.ops
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.training import benchmark as B
W = torch.device("cuda", 0); held = {}
exec(os.environ.get("PATCH", ""))
def contestant(model):
    s = B.LLAMA if model == "llama" else B.Setup()
    s = B.Setup(**{**vars(s), "device": "cuda"})
    c = s.config(steps=500, lr=3e-4, min_lr=3e-4, warmup=0, clip=0.0)
    one = B._Contestant("rooftile", s.model, c, B._tokens(s.model.vocab_size))
    one.run(B.WARMUP); torch.cuda.synchronize()
    return one
def op(name, case, config=None, kernel=None):
    key = (name, case, json.dumps(config), kernel)
    if key not in held:
        o = OPS[name]; c = next(c for c in o.spec.cases if c.id.startswith(case))
        call = o.spec.draw(c, 0, W); ch = o.choose(call)
        k = o.kernel(kernel) if kernel else ch.kernel
        run = k.bound(config if config is not None else o.config(k, call), save=False)
        a = tuple(call.values()); held[key] = lambda: run(*a)
    return held[key]
for line in sys.stdin:
    m = json.loads(line)
    try:
        if m["do"] == "build": held[m["model"]] = contestant(m["model"]); r = torch.cuda.max_memory_allocated() / 2**30 + held[m["model"]].stepper.pool_bytes / 2**30
        elif m["do"] == "step": r = held[m["model"]].timed(m["steps"])
        elif m["do"] == "warm": op(*m["op"])(); torch.cuda.synchronize(); r = 0
        elif m["do"] == "op":
            with torch.no_grad(): t = timing.compare({"x": op(*m["op"])}, W, budget_ms=m.get("ms", 40.0)); r = t.timings["x"].us
        elif m["do"] == "drop": held.clear(); torch.cuda.empty_cache(); r = 0
    except Exception as e:
        import traceback; traceback.print_exc(); r = f"FAILED {type(e).__name__}: {str(e)[:300]}"
    answers.write(json.dumps(r) + "\n"); answers.flush()
