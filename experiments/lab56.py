"""Llama's step by other algorithms of its products, found by algo55.py: base; `head`: tile 29 of the head's weight gradient; `work`: the heuristic's first, which may ask for memory;
`best`: each product's best. Predicted: head 0.3 to 1.2 ms of 223, work 0 to 0.5, best up to 2.5."""
import collections, ctypes, statistics, time, torch
from rooftile.cuda import cublaslt as lt
from rooftile.training import benchmark as b
from rooftile.core.kernel import OPS
L = lt._library()
setter = L.cublasLtMatmulAlgoConfigSetAttribute
setter.argtypes, setter.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
checker = L.cublasLtMatmulAlgoCheck
checker.argtypes, checker.restype = (ctypes.c_void_p,) * 8, ctypes.c_int
TILE, SWIZZLE, OPTION, CLUSTER = 1, 4, 5, 8
NAME = {TILE: "tile", SWIZZLE: "swizzle", OPTION: "option", CLUSTER: "cluster"}
def kind(w): return ctypes.c_uint16 if w == CLUSTER else ctypes.c_int32
def get(a, w):
    v = kind(w)(); L.cublasLtMatmulAlgoConfigGetAttribute(ctypes.addressof(a), w, ctypes.byref(v), ctypes.sizeof(v), None); return v.value
def varied(plan, answer, settings):
    new, result = lt.Answer(), lt.Answer()
    ctypes.memmove(ctypes.addressof(new), ctypes.addressof(answer), ctypes.sizeof(answer))
    for w, value in settings.items():
        v = kind(w)(value)
        if setter(ctypes.addressof(new), w, ctypes.byref(v), ctypes.sizeof(v)): return None
    if checker(plan.handle, plan.description, *plan.layouts, ctypes.addressof(new), ctypes.addressof(result)): return None
    new.workspace = result.workspace
    return new
# (m, k, n, left transposed): name
P = {(16384, 16384, 2048, 0): "dx gate_up", (16384, 16384, 2048, 1): "dW gate_up", (16384, 8192, 2048, 0): "down+", (2048, 16384, 8192, 1): "dW down",
     (8192, 2048, 128256, 0): "logits", (8192, 128256, 2048, 0): "dx head", (128256, 8192, 2048, 1): "dW head",
     (16384, 2048, 3072, 0): "qkv", (16384, 3072, 2048, 0): "dx qkv", (3072, 16384, 2048, 1): "dW qkv", (16384, 2048, 2048, 0): "o", (2048, 16384, 2048, 1): "dW o"}
BEST = {"dW gate_up": {TILE: 23, SWIZZLE: 1, OPTION: 4, CLUSTER: 3}, "down+": {TILE: 24, SWIZZLE: 1, OPTION: 7, CLUSTER: 5}, "dW down": {TILE: 23, SWIZZLE: 1, OPTION: 4, CLUSTER: 2},
        "logits": {TILE: 201, SWIZZLE: 0, OPTION: 2, CLUSTER: 5}, "dx head": {TILE: 24, SWIZZLE: 1, OPTION: 7, CLUSTER: 5}, "dW head": {TILE: 29, SWIZZLE: 0, OPTION: 1, CLUSTER: 3},
        "dW qkv": {TILE: 495, SWIZZLE: 1, OPTION: 7, CLUSTER: 5}, "dW o": {TILE: 24, SWIZZLE: 2, OPTION: 7, CLUSTER: 5}, "o": {TILE: 29, SWIZZLE: 1, OPTION: 3, CLUSTER: 3}}
variant, told = "base", set()
def choose(plan, name):
    if variant == "base": return
    if variant == "work":
        if plan.tiles_wanted == () : plan.best = 0; print("work", name, plan.answers[0].workspace)
        return
    if variant == "head" and name != "dW head": return
    want = BEST.get(name)
    if want is None: return
    for a in sorted(plan.answers, key=lambda a: (get(a, TILE) != want[TILE], a.workspace)):
        if (new := varied(plan, a, want)) is not None and new.workspace <= lt.WORKSPACE:
            plan.answers.append(new); plan.best = len(plan.answers) - 1
            print(variant, name, {NAME[w]: get(new, w) for w in NAME}, "workspace", new.workspace); return
    print(variant, name, "not to be had")
old = lt.Plan.__init__
def init(self, out, left, right, *rest):
    old(self, out, left, right, *rest)
    (m, k), n = left.shape, right.shape[1]
    name = P.get((m, k, n, int(left.stride(1) != 1)))
    self.tiles_wanted = lt.preferred(out.device, m, n, k, "none")
    if name: choose(self, name)
    elif variant == "base": print("unnamed", (m, k, n, left.stride(), right.stride()))
lt.Plan.__init__ = init
setup = b.LLAMA
config = setup.config(steps=300, lr=3e-4, min_lr=3e-4, warmup=0, clip=0.0)
tokens = b._tokens(setup.model.vocab_size)
field = {}
for variant in ("base", "head", "work", "best"):
    lt._plans.clear()
    for op in OPS.values(): op.forget()
    one = b._Contestant("rooftile", setup.model, config, tokens)
    losses = one.run(5)
    field[variant] = one
    print(variant, [round(x.item(), 4) for x in losses], "pool", one.stepper.pool_bytes / 1e9, flush=True)
times = collections.defaultdict(list)
names = list(field)
begin = time.perf_counter()
for r in range(8):
    for name in (names if r % 2 == 0 else names[::-1]): times[name].append(field[name].timed(6)[0])
    if time.perf_counter() - begin > 55: break
for name in field: print(name, [round(x, 2) for x in times[name]], "median", round(statistics.median(times[name]), 2), flush=True)
