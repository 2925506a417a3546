"""The Llama step of the benchmark by kernel (CUDA graph replays), whole-step times, power and clocks; and rotary_attention's gradient alone by kernel. usage: prof62.py [gpt2]"""
import sys, torch, time, subprocess, threading, collections
from torch.profiler import profile, ProfilerActivity
from rooftile.training import benchmark as B
setup = B.LLAMA if len(sys.argv) < 2 else B.Setup()
config = setup.config(steps=200, lr=3e-4, min_lr=3e-4, warmup=0, clip=0.0)
def smi():
    while not stop.is_set():
        print(time.strftime("%T"), subprocess.run("nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active --format=csv,noheader", shell=True, capture_output=True, text=True).stdout.strip(), flush=True); stop.wait(1.0)
stop = threading.Event()
with B._contestant("rooftile", setup.model, config) as one:
    one.run(B.WARMUP); torch.cuda.synchronize()
    from rooftile.core.kernel import OPS
    for n in ("rotary_attention", "attention", "attention_qkvpacked"):
        op = OPS.get(n)
        for o in (op, op.backward if hasattr(op, "backward") else None):
            if o is not None and getattr(o, "was_launched", False): print(n, getattr(o.spec, "name", ""), {str(v)[:200] for v in list(o._memo.values())[:4]})
    threading.Thread(target=smi, daemon=True).start()
    for n in (5, 10, 20): print(n, "steps", one.timed(n), flush=True)
    stop.set()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        one.run(2); torch.cuda.synchronize()
    ev = [e for e in p.events() if e.device_type == torch._C._autograd.DeviceType.CUDA]
    t, c = collections.Counter(), collections.Counter()
    for e in ev: t[e.name] += e.device_time_total / 2e3; c[e.name] += 1
    spans = sorted((e.time_range.start, e.time_range.end) for e in ev)
    busy, last = 0.0, spans[0][0]
    for a, b in spans:
        busy += max(0, b - max(a, last)); last = max(last, b)
    print(f"{len(ev)//2} kernels, sum {sum(t.values()):.2f} ms, busy {busy/2e3:.2f} of {(spans[-1][1]-spans[0][0])/2e3:.2f} ms a step")
    for n, ms in t.most_common(45): print(f"{ms:8.3f} ms {c[n]//2:4d}  {1e3*ms/max(1,c[n]/2):8.1f} us  {n[:130]}")
