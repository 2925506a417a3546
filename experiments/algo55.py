"""Llama's products beyond what cuBLASLt's heuristic offers: its own algorithms with other clusters, stages, swizzles and options, as far as cublasLtMatmulAlgoCheck has them.
In bursts at the board's power. usage: algo55.py SECONDS_A_PRODUCT. Prints by product: ours, torch, the best few with their settings. Predicted: 1 to 2 % of 130 ms, or nothing."""
import collections, ctypes, itertools, statistics, sys, time, torch
from rooftile.cuda import cublaslt as lt
LIMIT = float(sys.argv[1]) if len(sys.argv) > 1 else 7.0
ONLY = sys.argv[2].split(",") if len(sys.argv) > 2 else None
torch.manual_seed(0)
bf = dict(device="cuda", dtype=torch.bfloat16)
M, K, F, Q, V, C = 16384, 2048, 8192, 3072, 128256, 4096
def rn(*s, scale=1.0): return torch.randn(*s, **bf) * scale
shapes = {
    "dx gate_up": (lambda: (rn(M, 2 * F, scale=.01), rn(2 * F, K, scale=.02)), 16), "dW gate_up": (lambda: (rn(M, 2 * F, scale=.01).t(), rn(M, K)), 16),
    "down+": (lambda: (rn(M, F), rn(K, F, scale=.02).t()), 16), "dW down": (lambda: (rn(M, K, scale=.01).t(), rn(M, F)), 16),
    "logits": (lambda: (rn(C, K), rn(V, K, scale=.02).t()), 4), "dx head": (lambda: (rn(C, V, scale=1e-4), rn(V, K, scale=.02)), 4),
    "dW head": (lambda: (rn(C, V, scale=1e-4).t(), rn(C, K)), 4),
    "qkv": (lambda: (rn(M, K), rn(Q, K, scale=.02).t()), 16), "dx qkv": (lambda: (rn(M, Q, scale=.01), rn(Q, K, scale=.02)), 16),
    "dW qkv": (lambda: (rn(M, Q, scale=.01).t(), rn(M, K)), 16), "o+": (lambda: (rn(M, K), rn(K, K, scale=.02).t()), 16),
    "dx o": (lambda: (rn(M, K, scale=.01), rn(K, K, scale=.02)), 16), "dW o": (lambda: (rn(M, K, scale=.01).t(), rn(M, K)), 16),
}
NAMES = {0: "id", 1: "tile", 2: "split", 3: "reduce", 4: "swizzle", 5: "option", 6: "stages", 7: "inner", 8: "cluster"}
SIZE = {7: 2, 8: 2}
L = lt._library()
def get(answer, which):
    v = (ctypes.c_uint16 if SIZE.get(which) else ctypes.c_int32)()
    n = ctypes.c_size_t()
    s = L.cublasLtMatmulAlgoConfigGetAttribute(ctypes.addressof(answer), which, ctypes.byref(v), ctypes.sizeof(v), None)
    return v.value if s == 0 else f"?{s}"
setter = L.cublasLtMatmulAlgoConfigSetAttribute
setter.argtypes, setter.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
checker = L.cublasLtMatmulAlgoCheck
checker.argtypes, checker.restype = (ctypes.c_void_p,) * 8, ctypes.c_int
def varied(plan, answer, settings):
    new, result = lt.Answer(), lt.Answer()
    ctypes.memmove(ctypes.addressof(new), ctypes.addressof(answer), ctypes.sizeof(answer))
    for which, value in settings.items():
        v = (ctypes.c_uint16 if SIZE.get(which) else ctypes.c_int32)(value)
        if setter(ctypes.addressof(new), which, ctypes.byref(v), ctypes.sizeof(v)): return None
    a, b, c, d = plan.layouts
    if checker(plan.handle, plan.description, a, b, c, d, ctypes.addressof(new), ctypes.addressof(result)): return None
    if result.workspace > lt.WORKSPACE: return None
    new.workspace = result.workspace
    return new
def burst(f, seconds):
    f(); torch.cuda.synchronize(); t = time.perf_counter(); n = 0
    while True:
        for _ in range(5): f()
        torch.cuda.synchronize(); n += 5
        if (d := time.perf_counter() - t) > seconds: return d / n * 1e6
heat = rn(8192, 8192)
t = time.perf_counter()
while time.perf_counter() - t < 3: torch.mm(heat, heat); torch.cuda.synchronize()
total = collections.Counter()
for name, (make, often) in shapes.items():
    if ONLY and name not in ONLY: continue
    begin = time.perf_counter()
    left, right = make()
    wide, plus = name == "dW head", name.endswith("+")
    out = torch.empty(left.shape[0], right.shape[1], device="cuda", dtype=torch.float32 if wide else torch.bfloat16).zero_()
    add = out if wide else rn(*out.shape) if plus else None
    call = lambda i: lt.product(out, left, right, add=add, algorithm=i)
    call(-1)
    plan = list(lt._plans.values())[-1]
    ours = plan.best
    seen, said = set(), {}
    def key(a): return tuple(get(a, w) for w in NAMES)
    for i, a in enumerate(plan.answers): seen.add(key(a)); said[i] = dict(zip(NAMES.values(), key(a)))
    base = [ours] + [i for i in range(len(plan.answers)) if i != ours]
    made = 0
    one_by_one = [{8: c} for c in range(0, 24)] + [{4: s} for s in range(0, 4)] + [{5: o} for o in range(0, 12)] + [{6: s} for s in range(0, 40)] + [{7: s} for s in range(0, 8)]
    two = [{8: c, 5: o} for c in range(2, 12) for o in range(0, 6)] + [{8: c, 4: s} for c in range(2, 12) for s in (0, 1)]
    for i in base[:6]:
        for settings in one_by_one + (two if i == ours else []):
            a = varied(plan, plan.answers[i], settings)
            if a is None or (k := key(a)) in seen: continue
            seen.add(k); plan.answers.append(a); said[len(plan.answers) - 1] = dict(zip(NAMES.values(), k)); made += 1
    plan.offered = len(plan.answers)
    first = {}
    order = list(range(len(plan.answers)))
    want = None
    for i in order:
        if time.perf_counter() - begin > LIMIT * 0.6 and i > 40: break
        try: first[i] = burst(lambda: call(i), 0.012)
        except Exception as e: torch.cuda.synchronize(); said[i]["error"] = str(e)[:40]
    short = sorted(first, key=first.get)[:6]
    T = collections.defaultdict(list)
    while time.perf_counter() - begin < LIMIT or len(T["ours"]) < 3:
        for i in short: T[i].append(burst(lambda: call(i), 0.05))
        T["ours"].append(burst(lambda: call(ours), 0.05))
        if not wide and not plus: T["torch"].append(burst(lambda: torch.mm(left, right, out=out), 0.05))
    med = {k: statistics.median(v) for k, v in T.items()}
    best = min(short, key=med.get)
    total["ours"] += med["ours"] * often; total["best"] += min(med[best], med["ours"]) * often
    print(f"{name:11} {len(first)} of {len(plan.answers)} timed, {made} made; ours {ours} {med['ours']:.1f} torch {med.get('torch', 0):.1f}", {i: (round(med[i], 1), {k: v for k, v in said[i].items() if k not in ('id', 'reduce')}) for i in sorted(short, key=med.get)[:3]}, "ours is", {k: v for k, v in said[ours].items()}, flush=True)
    lt._plans.clear(); del left, right, out, add
print("a step's products: ours", round(total["ours"] / 1e3, 2), "ms, the best of each", round(total["best"] / 1e3, 2), flush=True)
