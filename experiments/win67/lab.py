"""win67: short windows at D = 64 (gpt-oss), on branch wide66: who is how fast. usage: PYTHONPATH=src python3 .gpu/win67/lab.py. 20 s with compiling.
gluon and triton 144 us at (4, 2048, 64 heads on 8, window 128), a copy 44. triton.packed: 64 rows are 8 queries x 8 heads, which see 135 keys and not 191, and keys are read an eighth as often: predicted 95 us.
gluon at (2, 4096) without a window: two groups 606 us, FlashAttention-4 553; three groups (NARROW[1]) predicted 550. D = 256 with a window of 1024: gluon.widest predicted 0.6 of triton's."""
import torch
from rooftile.core import timing
from rooftile.core.kernel import OPS
dev, op = torch.device("cuda", 0), OPS["attention_options"]
for b, t, h, g, d, window, cap in ((4, 2048, 64, 8, 64, 128, 0.0), (1, 8192, 64, 8, 64, 128, 0.0), (2, 4096, 64, 8, 64, 0, 0.0), (4, 2048, 32, 8, 128, 128, 0.0), (2, 8192, 16, 8, 256, 1024, 0.0), (2, 4096, 16, 8, 256, 0, 50.0)):
    q, k, v = (torch.randn(b, t, n, d, device=dev).bfloat16() for n in (h, g, g))
    sinks = torch.randn(h, device=dev).bfloat16() if d == 64 else None
    call = (q, k, v, sinks, None, None, None, None, d**-0.5, window - 1 if window else -1, 0, cap, 0.0, False)
    named, runs, made = dict(zip(op.names, call)), {}, {}
    for kernel in op.kernels:
        if kernel.name.startswith(("gluon", "triton")) and "split" not in kernel.name and kernel.refuse(named) is None:
            for i, c in enumerate(kernel.configs[:3]):
                try: made[f"{kernel.name} {i}"] = kernel.run(*call, config=c)[0].float(); runs[f"{kernel.name} {i}"] = (lambda kernel=kernel, c=c: kernel.run(*call, config=c))
                except Exception as error: print(kernel.name, i, type(error).__name__, str(error)[:80])
    first = next(iter(made.values()))
    print((b, t, h, g, d, window, cap), {n: f"{x.us:.1f} off {float((made[n] - first).abs().max()):.3f}" for n, x in timing.compare(runs, dev, budget_ms=40.0).timings.items()}, flush=True)
