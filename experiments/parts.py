"""What prepare, the walk and finish of attention's gradient take at T = 16384, D = 128, and T = 4096: by PyTorch's profiler, beside a copy of as many bytes.
Predicted: prepare (out, dout in, zeros out: 268 MB) 64 us of a copy's speed, finish (201 MB) 48; short blocks may have 0.7 of it, which would be 40 us of 4117, as much as the row lacks."""
import torch
from torch.profiler import ProfilerActivity, profile
from rooftile.core.kernel import OPS
from rooftile.ops.attention import cuda_kernels as ck
def once(b, t, h, d, causal):
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(b, t, h, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    out, lse = OPS["attention"](q, k, v, causal, d**-0.5)
    flush = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    for _ in range(3): ck.hopper(g, q, k, v, out, lse, causal, d**-0.5)
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(8): flush.zero_(); ck.hopper(g, q, k, v, out, lse, causal, d**-0.5)
        torch.cuda.synchronize()
    a, bb = torch.empty(134 << 20, device="cuda", dtype=torch.uint8), torch.empty(134 << 20, device="cuda", dtype=torch.uint8)
    with profile(activities=[ProfilerActivity.CUDA]) as c:
        for _ in range(8): flush.zero_(); bb.copy_(a)
        torch.cuda.synchronize()
    print(b, t, h, d, causal, {e.key[:40]: round(e.device_time_total / e.count, 1) for e in p.key_averages() if e.count == 8 and "ill" not in e.key}, "copy of 268 MB:", [round(e.device_time_total / e.count, 1) for e in c.key_averages() if "emcpy" in e.key or "copy" in e.key.lower()], flush=True)
for b, t in ((1, 16384), (4, 4096), (16, 1024)):
    for causal in (True, False): once(b, t, 16, 128, causal)
for causal in (True, False): once(1, 16384, 32, 64, causal)
