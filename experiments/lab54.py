"""Llama's products by every algorithm that cuBLASLt knows for them (64 asked, not 8), and attention by ours and the vendor's, in bursts at the board's power.
Random data as large as a step's. Prints by product: what torch takes, what we prefer, the best; microseconds a call, medians over rounds."""
import collections, statistics, sys, time, torch
from rooftile.cuda import cublaslt as lt
lt.OFFERED = int(sys.argv[1]) if len(sys.argv) > 1 else 64
BURST = float(sys.argv[2]) if len(sys.argv) > 2 else 0.08
torch.manual_seed(0)
bf = dict(device="cuda", dtype=torch.bfloat16)
M, K, F, Q, V, C = 16384, 2048, 8192, 3072, 128256, 4096
def rn(*s, scale=1.0): return torch.randn(*s, **bf) * scale
shapes = {
    "qkv": (lambda: (rn(M, K), rn(Q, K, scale=.02).t()), 16), "down+": (lambda: (rn(M, F), rn(K, F, scale=.02).t()), 16),
    "dW down": (lambda: (rn(M, K, scale=.01).t(), rn(M, F)), 16), "dx gate_up": (lambda: (rn(M, 2 * F, scale=.01), rn(2 * F, K, scale=.02)), 16),
    "dW qkv": (lambda: (rn(M, Q, scale=.01).t(), rn(M, K)), 16), "dW head": (lambda: (rn(C, V, scale=1e-4).t(), rn(C, K)), 4),
}
def burst(f):
    f(); torch.cuda.synchronize(); t = time.perf_counter(); n = 0
    while True:
        for _ in range(10): f()
        torch.cuda.synchronize(); n += 10
        if (d := time.perf_counter() - t) > BURST: return d / n * 1e6
heat = rn(8192, 8192)
t = time.perf_counter()
while time.perf_counter() - t < 3: torch.mm(heat, heat); torch.cuda.synchronize()
total = collections.Counter()
for name, (make, often) in shapes.items():
    left, right = make()
    wide, plus = name == "dW head", name.endswith("+")
    out = torch.empty(left.shape[0], right.shape[1], device="cuda", dtype=torch.float32 if wide else torch.bfloat16).zero_()
    add = out if wide else rn(*out.shape) if plus else None
    call = lambda i: lt.product(out, left, right, add=add, algorithm=i)
    call(-1)
    plan = list(lt._plans.values())[-1]
    ours, count = plan.best, plan.offered
    names = list(range(count))
    T = collections.defaultdict(list)
    if not wide and not plus: mm = lambda: torch.mm(left, right, out=out)
    first = {i: burst(lambda: call(i)) for i in names}  # one round of all, then rounds of the eight best
    base = burst(lambda: call(-1))
    short = sorted(names, key=first.get)[:4]
    for r in range(10):
        for i in short: T[i].append(burst(lambda: call(i)))
        T["ours"].append(burst(lambda: call(-1)))
        if not wide and not plus: T["torch"].append(burst(mm))
    med = {k: statistics.median(v) for k, v in T.items()}
    fl = 2 * left.shape[0] * left.shape[1] * right.shape[1]
    best = min((i for i in short), key=med.get)
    total["ours"] += med["ours"] * often; total["best"] += min(med[best], med["ours"]) * often
    say = {k: (round(v, 1), round(fl / v / 1e6)) for k, v in sorted(med.items(), key=lambda x: x[1])}
    print(f"{name:11} offered {count} ours={ours} tile {plan.tile(plan.answers[ours])}", say, "tiles", {i: (plan.tile(plan.answers[i]), plan.answers[i].workspace) for i in short[:3]}, flush=True)
    lt._plans.clear(); del left, right, out, add
print("a step's products: ours", round(total["ours"] / 1e3, 2), "ms, the best of each", round(total["best"] / 1e3, 2), flush=True)
