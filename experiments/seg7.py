"""v7's configs, v5 and a copy of the same bytes, in turn, on rows of one number. Run: PYTHONPATH=src python .gpu/seg7.py [--quick]"""

import statistics
import sys
import time

import torch

from rooftile.core.kernel import OPS
import rooftile.ops.segment_sum.api  # noqa: F401
from rooftile.ops.segment_sum import warps_kernels
from rooftile.cuda.source import Source
from pathlib import Path

BASE = Path(warps_kernels.WARPS.path).read_text()
EDITS = {"base": (), "look1": (("LOOK = 2", "LOOK = 1"),), "full": (("768 / BLOCK", "1024 / BLOCK"),), "both": (("768 / BLOCK", "1024 / BLOCK"), ("LOOK = 2", "LOOK = 1"))}
SOURCES = {}
for name, edits in EDITS.items():
    text = BASE
    for a, b in edits:
        assert text.count(a) >= 1
        text = text.replace(a, b)
    p = Path(f"/tmp/v7_{name}.cu")
    p.write_text(text)
    SOURCES[name] = Source(p)
MANY = [("base", 128, 24), ("base", 256, 24), ("base", 128, 48), ("base", 256, 48), ("base", 128, 96), ("full", 128, 32), ("full", 256, 32), ("full", 128, 64), ("full", 256, 64),
        ("full", 128, 128), ("look1", 128, 24), ("look1", 128, 48), ("both", 128, 32), ("both", 128, 64)]
from concurrent.futures import ThreadPoolExecutor
import cuda.core
from cuda.core import Program, ProgramOptions
from rooftile.cuda import compile as compiler


def made(n, instance):
    return compiler.compiled(SOURCES[n], instance, "sm_90a")


with ThreadPoolExecutor(16) as pool:
    types = ("float, long long", "__nv_bfloat16, long long")
    list(pool.map(lambda a: made(*a), {(n, f"chunks<{t}, {b}>") for n, b, _ in MANY for t in types} | {(n, f"join<{t}>") for n in EDITS for t in types}))


def with_source(n, c, x, cut):
    warps_kernels.WARPS = SOURCES[n]
    return KERNELS["v7_warps"].run(x, cut, config=c)


M, E = 67108864, 1048576
KERNELS = {name: OPS["segment_sum"].kernel(f"cuda.{name}") for name in ("v7_warps", "v5_laid")}


def cuts(m, e, gen):
    inner = torch.randint(0, m + 1, (e - 1,), generator=gen, device="cuda").sort().values
    return torch.cat([inner.new_tensor([0]), inner, inner.new_tensor([m])])


def truth(x, cut):
    """In float64, by the segment of each number; no running sum."""
    out = torch.zeros(cut.numel() - 1, dtype=torch.float64, device="cuda")
    for at in range(0, x.numel(), 1 << 24):
        row = torch.arange(at, min(at + (1 << 24), x.numel()), device="cuda")
        e = torch.searchsorted(cut, row, right=True) - 1
        inside = (e >= 0) & (e < out.numel())
        out.index_add_(0, e.clamp(0, out.numel() - 1), torch.where(inside, x[row, 0].double(), 0.0))
    return out


def timed(calls, rounds):
    times = {name: [] for name in calls}
    for r in range(rounds + 2):
        events = []
        for name in list(calls) if r % 2 else reversed(list(calls)):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(300000)  # the host is ahead
            a.record()
            calls[name]()
            b.record()
            events.append((name, a, b))
        torch.cuda.synchronize()
        if r >= 2:
            for name, a, b in events:
                times[name].append(a.elapsed_time(b) * 1e3)
    return {name: statistics.median(t) for name, t in times.items()}


def main():
    start, rounds = time.time(), 8 if "--quick" in sys.argv else 12
    print(torch.cuda.get_device_name())
    for title, dtype, e, half in (("mean 64", torch.float32, E, False), ("mean 64", torch.bfloat16, E, False), ("mean 4", torch.float32, M // 4, False),
                                  ("half is one", torch.float32, E, True)):  # fmt: skip
        gen = torch.Generator("cuda").manual_seed(0)
        x, cut = torch.randn(M, 1, generator=gen, device="cuda").to(dtype), cuts(M, e, gen) if e > 1 else torch.tensor([0, M], device="cuda")
        if half:
            cut = torch.cat([cut[:1], cut[1:].clamp_min(M // 2)])
        calls = {}
        for n, b, p in MANY:
            calls[f"v7 {n} {b} {p}"] = lambda n=n, c={"block": b, "per_sm": p}: with_source(n, c, x, cut)
        for c in KERNELS["v5_laid"].configs[:2]:
            calls["v5 " + " ".join(map(str, c.values()))] = lambda c=c: KERNELS["v5_laid"].run(x, cut, config=c)
        n = (x.numel() * x.itemsize + cut.numel() * 8 + e * x.itemsize) // 2
        source, to = torch.empty(n, dtype=torch.uint8, device="cuda"), torch.empty(n, dtype=torch.uint8, device="cuda")
        calls["copy"] = lambda: to.copy_(source)
        want, errors = truth(x, cut), {}
        for name, call in calls.items():
            if name != "copy":
                one, two = call(), call()
                away = ((one[:, 0].double() - want).abs() / want.abs().clamp_min(1.0)).max().item()
                errors[name] = f"{away:.1e}{'' if torch.equal(one, two) else '  TWO RUNS DIFFER'}"
        found = timed(calls, rounds)
        print(f"\n{title} {dtype}, {cut.numel() - 1} segments, {2 * n / 1e6:.0f} MB")
        for name, us in sorted(found.items(), key=lambda f: f[1]):
            print(f"  {name:18s} {us:8.1f} us  {found['copy'] / us:5.3f} of a copy  {errors.get(name, '')}")
    print(f"{time.time() - start:.0f} s")


main()
