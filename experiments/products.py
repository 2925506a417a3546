"""Who takes the least energy for the products of both training steps: cuBLASLt's algorithms and our own product with clusters of 1, 2 and 4 blocks, at the
board's power, slices of each in turn, so that heat and clock are everybody's. Alone and cold, as `bench` times, the board is not at its power: that is
another question, with other answers.
PYTHONPATH=src OUT=/dir python3 experiments/products.py [gpt2|llama] ; LIMIT seconds. The table goes to $OUT/products.txt; base is what a step takes now.
What to look for: a ratio under 0.98 whose low and high turns are both under 1."""
import os, statistics, sys, time
import torch
from rooftile.cuda import cublaslt
from rooftile.ops._shared import hopper_products as own

W, BEGAN, LIMIT = torch.device("cuda", 0), time.time(), float(os.environ.get("LIMIT", 120))
SLICE_S, ROUNDS, MOST = 0.04, 5, 7
# name, M, N, K, whose B is a weight as it lies [N, K] (f) or [K, N] (d), or whose sum is over rows (w)
GPT2 = [("fc", 32768, 3072, 768, "f"), ("dh", 32768, 3072, 768, "d"), ("head", 16384, 50304, 768, "f"), ("head", 16384, 768, 50304, "d"),
        ("qkv", 32768, 2304, 768, "f"), ("fc2", 32768, 768, 3072, "f"), ("fc dx", 32768, 768, 3072, "d"), ("qkv dx", 32768, 768, 2304, "d"),
        ("proj", 32768, 768, 768, "f"), ("proj dx", 32768, 768, 768, "d"), ("head dw", 50304, 768, 16384, "w"), ("fc dw", 3072, 768, 32768, "w"),
        ("fc2 dw", 768, 3072, 32768, "w"), ("qkv dw", 2304, 768, 32768, "w"), ("proj dw", 768, 768, 32768, "w")]
LLAMA = [("gate_up", 16384, 16384, 2048, "f"), ("dh", 16384, 8192, 2048, "d"), ("down", 16384, 2048, 8192, "f"), ("gate_up dx", 16384, 2048, 16384, "d"),
         ("qkv", 16384, 3072, 2048, "f"), ("qkv dx", 16384, 2048, 3072, "d"), ("o", 16384, 2048, 2048, "f"), ("o dx", 16384, 2048, 2048, "d"),
         ("head", 8192, 128256, 2048, "f"), ("head dx", 8192, 2048, 128256, "d"), ("gate_up dw", 16384, 2048, 16384, "w"), ("down dw", 2048, 8192, 16384, "w"),
         ("qkv dw", 3072, 2048, 16384, "w"), ("o dw", 2048, 2048, 16384, "w"), ("head dw", 128256, 2048, 8192, "w")]
cublaslt.OFFERED = 24
lines = []


def say(text):
    print(text, flush=True)
    lines.append(text)
    with open(os.path.join(os.environ.get("OUT", "/tmp"), f"products-{'-'.join(sys.argv[1:])}.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")


def slices(runs, us, rounds, seconds):
    """Microseconds of each in each of `rounds` turns, back to back: the board is never idle."""
    counts = {i: max(2, int(1e6 * seconds / us)) for i in runs}
    marks = []
    for r in range(rounds):
        for i in list(runs) if r % 2 == 0 else list(runs)[::-1]:
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            runs[i]()
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


def one(name, m, n, k, way):
    make = lambda *s, std=1.0: torch.empty(s, device=W, dtype=torch.bfloat16).normal_(std=std)  # noqa: E731
    if way == "f":
        left, right = make(m, k), make(n, k, std=0.02).t()
    elif way == "d":
        left, right = make(m, k, std=1e-3), make(k, n, std=0.02)
    else:
        left, right = make(k, m, std=1e-3).t(), make(k, n)
    out = torch.empty(m, n, device=W, dtype=torch.bfloat16)
    vendor = lambda i: cublaslt.product(out, left, right, algorithm=i)  # noqa: E731
    vendor(cublaslt.PREFERRED)
    plan = list(cublaslt._plans.values())[-1]
    runs = {"base": lambda: vendor(cublaslt.PREFERRED)}
    for i in range(len(plan.answers)):
        if i != (plan.best or 0):
            runs[f"lt#{i} t{plan.tile(plan.answers[i])}"] = lambda i=i: vendor(i)
    if own.cannot(left, right, None, out) is None and own.too_few(left, m, n) is None:
        wanted = out.clone()
        for c in own.CONFIGS:
            run = lambda c=c: own.product(left, right, None, out, c)  # noqa: E731
            key = f"own {c['BLOCK_N']}x{c['BLOCK_K']} lag {c['LAG']} c{c['CLUSTER']}"
            try:
                out.zero_()
                run()
                torch.cuda.synchronize()
                apart = float((out.float() - wanted.float()).abs().max() / wanted.float().abs().max())
                if apart > 0.02:
                    say(f"WRONG {name} {key} {apart}")
                else:
                    runs[key] = run
            except Exception as e:  # noqa: BLE001
                say(f"{name} {key}: {type(e).__name__} {str(e)[:200]}")
        del wanted
    us = 2 * m * n * k / 6.5e8
    for _ in range(int(60000 / us)):
        runs["base"]()
    look = {i: statistics.median(t) for i, t in slices(runs, us, 2, 0.006).items()}
    best = sorted((i for i in runs if i != "base"), key=look.get)
    keep = ["base", *best[:MOST]]
    keep += [next((i for i in best if i.endswith(c) and i not in keep), None) for c in ("c1", "c2", "c4") if not any(i.endswith(c) for i in keep)]
    took = slices({i: runs[i] for i in keep if i}, us, ROUNDS, SLICE_S)
    of = {i: [a / b for a, b in zip(took[i], took["base"])] for i in took if i != "base"}
    mine = statistics.median(took["base"])
    say(f"{name:10s} {way} [{m} {n} {k}] base t{plan.tile(plan.answers[plan.best or 0])} {mine:8.1f} us {2 * m * n * k / mine / 1e6:4.0f} TFLOP/s | "
        + "  ".join(f"{i} {statistics.median(of[i]):.3f} [{min(of[i]):.3f} {max(of[i]):.3f}]" for i in sorted(of, key=lambda i: statistics.median(of[i]))))


for model, shapes in (("gpt2", GPT2), ("llama", LLAMA)):
    if len(sys.argv) < 2 or model in sys.argv[1:]:
        say(model)
        for shape in shapes:
            if time.time() - BEGAN > LIMIT:
                say("out of time")
                break
            try:
                one(*shape)
            except Exception as e:  # noqa: BLE001
                say(f"{shape}: {type(e).__name__} {str(e)[:200]}")
            cublaslt._plans.clear()
            torch.cuda.empty_cache()
say(f"{time.time() - BEGAN:.0f} s")
