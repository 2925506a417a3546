import sys, torch
sys.path.insert(0,'tests')
from rooftile.cuda import simulator
from rooftile.core.kernel import OPS
import rooftile.ops
op=OPS["attention_backward"]; 
for name in ("cuda.v5_hopper_ordered","cuda.v5_hopper"):
  kernel=op.kernel(name)
  for case in (c for c in op.spec.cases if c.dtype==torch.bfloat16 and {"smoke","check"}&{*c.use}):
    call=op.spec.draw(case,0,torch.device("cpu"))
    for seed in (1,2,3) if op.spec.operations(call)<2e8 else ():
        call=op.spec.draw(case,0,torch.device("cpu"))
        with simulator.active("values",seed=seed):
            if kernel.refuse(call) is None:
                try: kernel.bound(kernel.heuristic(call))(*call.values())
                except simulator.Found as e: print(name, case.id, seed, str(e)[:400],flush=True)
