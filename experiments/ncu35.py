import sys, torch, importlib
sys.path.insert(0, ".gpu/newv5")
from rooftile.workbench.explain import operator
dev = torch.device("cuda"); spec = operator("attention_backward").spec
flush = torch.empty(1 << 28, dtype=torch.uint8, device=dev)
for sub in ("B16_T1024_S1024_H16_D128-bfloat16-causal=True", "B16_T1024_S1024_H32_D64-bfloat16-causal=True", "B16_T1024_S1024_H16_D128-bfloat16-causal=False"):
    case = next(c for c in spec.cases if c.id.startswith(sub)); call = spec.draw(case, 0, dev)
    for n in "NO":
        m = next(k for k in importlib.import_module("k" + n).BACKWARD if k.name == "cuda.v5_hopper")
        m.run(*call.values()); flush.zero_(); torch.cuda.synchronize()
        torch.cuda.profiler.start(); m.run(*call.values()); torch.cuda.synchronize(); torch.cuda.profiler.stop()
