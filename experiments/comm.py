"""torchrun: bandwidth of exchanges of 2.4 GB by two GPUs. argv: micro | step KIND"""
import os, sys, time, torch, statistics
import torch.distributed as dist
rank = int(os.environ["RANK"]); torch.cuda.set_device(rank)
def timed(f, n=8):
    for _ in range(3): f()
    torch.cuda.synchronize(); dist.barrier(); torch.cuda.synchronize()
    es = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(n)]
    for a, b in es:
        a.record(); f(); b.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in es)
def say(*a):
    if rank == 0: print(*a, flush=True)
if sys.argv[1] == "micro":
    dist.init_process_group("nccl")
    N = 1_200_000_000
    x = torch.randn(N // 8, device="cuda", dtype=torch.bfloat16).repeat(8)
    h = torch.empty(N // 2, device="cuda", dtype=torch.bfloat16)
    tag = {k: v for k, v in os.environ.items() if k.startswith("NCCL_") and k not in ("NCCL_NVLS_ENABLE",)}
    say(tag, "nccl", torch.cuda.nccl.version())
    for name, f in (("all_reduce avg", lambda: dist.all_reduce(x, op=dist.ReduceOp.AVG)), ("all_reduce sum", lambda: dist.all_reduce(x)),
                    ("reduce_scatter avg", lambda: dist.reduce_scatter_tensor(h, x, op=dist.ReduceOp.AVG)), ("all_gather", lambda: dist.all_gather_into_tensor(x, h))):
        ms = timed(f); say("%-20s %.2f ms  %.0f GB/s a way" % (name, ms, (2 if "reduce " in name and "scatter" not in name else 1) * N / 1e6 / ms))
    if "plain" in sys.argv:
        import torch.distributed._symmetric_memory as symm
        try:
            s = symm.empty(N, dtype=torch.bfloat16, device="cuda"); hdl = symm.rendezvous(s, dist.group.WORLD)
            s.copy_(x)
            peer = hdl.get_buffer(1 - rank, (N,), torch.bfloat16)
            mine = torch.empty(N // 2, device="cuda", dtype=torch.bfloat16)
            half = slice(rank * N // 2, (rank + 1) * N // 2)
            other = slice((1 - rank) * N // 2, (2 - rank) * N // 2)
            ms = timed(lambda: mine.copy_(peer[half])); say("pull of half by tensor.copy_ (CE?) %.2f ms %.0f GB/s" % (ms, N / 1e6 / ms))
            ms = timed(lambda: peer[half].copy_(mine)); say("push of half by tensor.copy_ %.2f ms %.0f GB/s" % (ms, N / 1e6 / ms))
            ms = timed(lambda: torch.add(s[half], peer[half], out=mine)); say("add of the peer's half through NVLink %.2f ms %.0f GB/s" % (ms, N / 1e6 / ms))
            try:
                ms = timed(lambda: torch.ops.symm_mem.two_shot_all_reduce_(s, "sum", dist.group.WORLD.group_name)); say("symm two_shot %.2f ms" % ms)
            except Exception as e: say("two_shot", str(e)[:200])
        except Exception as e: say("symm", type(e).__name__, str(e)[:300])
    dist.destroy_process_group(); sys.exit()
kind = sys.argv[2]
from rooftile.training import TrainConfig
from rooftile.training.parallel import Team
from rooftile.training.loop import _Run
import tempfile, inspect
from rooftile.workbench.scaling import KNOBS
knobs = {**KNOBS, "parallel": kind, "batch_size": 4 * (2 if kind != "none" else 1), "out": tempfile.mkdtemp(), "device": "cuda"}
knobs["batch_size"] = 4
config = TrainConfig(**knobs).resolved()
team = Team(config); run = _Run(team.agree(config), team)
if not dist.is_initialized(): pass
step = 0
def one():
    global step
    step += 1
    return run.update(step)
def sync():
    torch.cuda.synchronize()
    if dist.is_initialized(): dist.barrier(); torch.cuda.synchronize()
for _ in range(8): one()
sync(); ts = []
for _ in range(3):
    sync(); t = time.perf_counter()
    for _ in range(4): one()
    torch.cuda.synchronize(); ts.append((time.perf_counter() - t) / 4 * 1e3)
say(kind, "step ms", ["%.1f" % t for t in ts], "graph", config.graph)
from torch.profiler import profile, ProfilerActivity
with profile(activities=[ProfilerActivity.CUDA]) as p:
    for _ in range(2): one()
    torch.cuda.synchronize()
ev = [e for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA]
spans = sorted((e.time_range.start, e.time_range.end) for e in ev)
busy = 0; end = 0
for a, b in spans:
    busy += max(0, b - max(a, end)); end = max(end, b)
say("busy ms a step %.1f, span %.1f, idle %.1f" % (busy / 2e3, (end - spans[0][0]) / 2e3, ((end - spans[0][0]) - busy) / 2e3))
import collections
tot = collections.defaultdict(lambda: [0, 0.0])
for e in ev: tot[e.name][0] += 1; tot[e.name][1] += e.time_range.end - e.time_range.start
for n, (c, us) in sorted(tot.items(), key=lambda kv: -kv[1][1])[:45 if kind != "none" else 30]: say("%8.2f ms %5d  %s" % (us / 2e3, c // 2, n[:110]))
team.close()
