"""cuBLASLt's algorithms for the products of both training steps at the board's power: slices of each in turn, so that heat and clock are everybody's.
PYTHONPATH=src OUT=/dir python3 experiments/steady.py [gpt2|llama]; LIMIT seconds. The table goes to $OUT/steady.txt; base is who `preferred` picks.
What to look for: a ratio under 0.98 whose low and high turns are both under 1."""
import os, statistics, sys, time
import torch
from rooftile.cuda import cublaslt

W, BEGAN, LIMIT = torch.device("cuda", 0), time.time(), float(os.environ.get("LIMIT", 90))
SLICE_S, ROUNDS, NEAR, MOST = 0.06, 6, 1.08, 6  # candidates: within NEAR of the fastest burst, MOST of them
GPT2 = [("qkv", 32768, 2304, 768), ("proj", 32768, 768, 768), ("fc", 32768, 3072, 768), ("fc2", 32768, 768, 3072), ("head", 16384, 50304, 768)]
LLAMA = [("qkv", 16384, 3072, 2048), ("o", 16384, 2048, 2048), ("gate_up", 16384, 16384, 2048), ("down", 16384, 2048, 8192), ("head", 4096, 128256, 2048)]
cublaslt.OFFERED = 40
lines = []


def say(text):
    print(text, flush=True)
    lines.append(text)
    with open(os.path.join(os.environ.get("OUT", "/tmp"), "steady.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")


def burst(run, n=10):
    run()
    a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    time.sleep(0.005)
    a.record()
    for _ in range(n):
        run()
    b.record()
    b.synchronize()
    return 1e3 * a.elapsed_time(b) / n


def slices(runs, us):
    """Microseconds of each in each of ROUNDS turns, back to back: the board is never idle."""
    counts = {i: max(3, int(1e6 * SLICE_S / us[i])) for i in runs}
    marks = []
    for _ in range(3):  # to the board's power
        for i in runs:
            for _ in range(counts[i]):
                runs[i]()
    for r in range(ROUNDS):
        order = list(runs) if r % 2 == 0 else list(runs)[::-1]
        for i in order:
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record()
            for _ in range(counts[i]):
                runs[i]()
            b.record()
            marks.append((i, a, b))
    torch.cuda.synchronize()
    out = {i: [] for i in runs}
    for i, a, b in marks:
        out[i].append(1e3 * a.elapsed_time(b) / counts[i])
    return out


def products(model, shapes):
    for name, m, n, k in shapes:
        x, w, g = (torch.empty(s, device=W, dtype=torch.bfloat16).normal_(std=f) for s, f in (((m, k), 1.0), ((n, k), 0.02), ((m, n), 1e-3)))
        for way, left, right in (("f", x, w.t()), ("d", g, w), ("w", g.t(), x)):
            if time.time() - BEGAN > LIMIT:
                return say("out of time")
            out = torch.empty(left.shape[0], right.shape[1], device=W, dtype=torch.bfloat16)
            run = lambda i: cublaslt.product(out, left, right, algorithm=i)  # noqa: E731
            run(cublaslt.PREFERRED)
            plan = list(cublaslt._plans.values())[-1]
            base, tiles = plan.best or 0, [plan.tile(a) for a in plan.answers]
            us = {i: burst(lambda i=i: run(i)) for i in range(len(plan.answers))}
            near = sorted((i for i in us if i != base and us[i] < NEAR * min(us.values())), key=us.get)[:MOST]
            if base != 0 and 0 not in near:
                near.append(0)
            took = slices({i: (lambda i=i: run(i)) for i in (base, *near)}, us)
            of = {i: [a / b for a, b in zip(took[i], took[base])] for i in near}
            mine = statistics.median(took[base])
            say(f"{model} {name:8s}{way} {len(us):2d} offered, base #{base} tile {tiles[base]} {mine:8.1f} us {2 * m * n * k / mine / 1e6:4.0f} TFLOP/s (burst {us[base]:.1f}) | "
                + "  ".join(f"#{i} t{tiles[i]} {statistics.median(of[i]):.3f} [{min(of[i]):.3f} {max(of[i]):.3f}]" for i in sorted(near, key=lambda i: statistics.median(of[i]))))
        del x, w, g
        torch.cuda.empty_cache()


for model, shapes in (("gpt2", GPT2), ("llama", LLAMA)):
    if len(sys.argv) < 2 or model in sys.argv[1:]:
        products(model, shapes)
say(f"{time.time() - BEGAN:.0f} s")
