"""The kernels of one training step at the board's power, as its CUDA graph runs them: PYTHONPATH=src OUT=/dir python3 experiments/kernels.py gpt2 llama ; gaps.py FILE tells what each
adds to the step (a kernel that stands by while another ends counts from there) and where nothing runs."""
import json, os, sys, collections, torch
import rooftile.ops
from rooftile.training import benchmark as B
from torch.profiler import profile, ProfilerActivity
for model in sys.argv[1:]:
    s = B.LLAMA if model == "llama" else B.Setup()
    s = B.Setup(**{**vars(s), "device": "cuda"})
    c = s.config(steps=500, lr=3e-4, min_lr=3e-4, warmup=0, clip=0.0)
    one = B._Contestant("rooftile", s.model, c, B._tokens(s.model.vocab_size))
    one.run(B.WARMUP); torch.cuda.synchronize()
    alone = one.timed(60 if model == "gpt2" else 16)
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        seen = one.timed(4)
    spans = sorted((e.time_range.start, e.time_range.end, e.name) for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA)
    t = collections.defaultdict(lambda: [0, 0.0])
    for a, b, n in spans: t[n][0] += 1; t[n][1] += b - a
    rows = sorted(((k, v[0] / 4, v[1] / 4) for k, v in t.items()), key=lambda r: -r[2])
    print(model, "alone", alone, "profiled", seen, "sum", sum(r[2] for r in rows))
    for k, n, us in rows[:30]: print(f"  {us:9.1f} us  {n:6.1f} x {us/n:8.1f}  {k[:110]}")
    json.dump([rows, spans[len(spans) // 4 : len(spans) // 2]], open(f"{os.environ['OUT']}/kernels-{model}.json", "w"))
    del one; torch.cuda.empty_cache()
