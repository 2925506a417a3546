"""One call of each, between the profiler's start and stop; the L2 is flushed by a large write first."""
import sys, torch
from rooftile.workbench.explain import operator
dev = torch.device("cuda")
JOBS = [("segment_sum", "M1048576_E16384_N128-float32"), ("reduce_sum", "268435456-bfloat16"), ("attention_decode", "B1_T1_H32_G8_D128_S65536"), ("attention_backward", "B1_T16384_S16384_H32_D64-bfloat16-causal=False"),
        ("attention_backward", "B1_T16384_S16384_H16_D128-bfloat16-causal=False"), ("embedding", "M16384_V128256_N4096")]
flush = torch.empty(1 << 28, dtype=torch.uint8, device=dev)
for name, sub in JOBS:
    op = operator(name); spec = op.spec
    case = next(c for c in spec.cases if "bench" in c.use and c.id.startswith(sub))
    call = spec.draw(case, 0, dev)
    op(*call.values()) if spec.forward is None else op.launch(*call.values())
    flush.zero_(); torch.cuda.synchronize()
    torch.cuda.profiler.start()
    op.launch(*call.values())
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    del call; torch.cuda.empty_cache()
