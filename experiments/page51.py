"""Where paged decoding loses 3 us of 75: tables in order and at random, heads beside each other, clusters, longer stretches. --dry compiles only."""
import sys, torch
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from rooftile.core import timing
from rooftile.cuda import compile as compiler
from rooftile.cuda.source import Source
from rooftile.ops.attention_decode import fragments_kernels as f
from rooftile.ops.attention_decode.api import _decode
BASE = Path(f.V2.path).read_text()
def sub(s, *pairs):
    for a, b in pairs:
        assert s.count(a) == 1, (s.count(a), a)
        s = s.replace(a, b)
    return s
OLD = sub(Path(".gpu/v2_new1.cu").read_text(), ("int page, int step_pages, int step_rest, int window", "int page, int window"), ("step = splits * WARPS * KEYS;", "step = splits * WARPS * KEYS, step_pages = step / page, step_rest = step % page;"))
TEXTS = {"ahead1": OLD, "lanes": BASE, "short": sub(BASE, ("#pragma unroll\n    for (int o = 0; o < WARPS; ++o) {", "#pragma unroll 1\n    for (int o = 0; o < WARPS; ++o) {"))}
SOURCES = {}
for name, text in TEXTS.items():
    p = Path(f"/tmp/p50_{name}.cu"); p.write_text(text); SOURCES[name] = Source(p)
CFG = {"8x3": {"warps": 8, "stages": 3}, "4x3": {"warps": 4, "stages": 3}}
todo = [(s, f"shares<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, 128, 1, {p}, 3, {w}, {per}>") for s in SOURCES.values() for p in ("false", "true") for w, per in ((8, 1), (4, 2))]
import cuda.core
from cuda.core import Program, ProgramOptions  # noqa
with ThreadPoolExecutor(16) as pool: made = list(pool.map(lambda a: compiler.compiled(*a, "sm_90a"), todo))
if "--dry" in sys.argv:
    for (s, i), k in zip(todo, made): print(Path(s.path).name, i[-22:], k.registers, k.spill_bytes)
    raise SystemExit
kernel, launch, V2 = _decode.kernel("cuda.v2_fragments"), f.launch, f.V2
def run(name, config, args):
    f.V2 = SOURCES[name]
    f.launch = (lambda s, i, grid, *a, **k: launch(s, i, (grid[1], grid[0], grid[2]) if i.startswith("shares") else grid, *a, **k)) if False else launch
    return kernel.run(*args, config=config)
cases = [c for c in _decode.spec.cases if "bench" in c.use and c.dims["T"] == 1 and not c.id.startswith("host") and c.dims["S"] != 16]
for case in sorted(cases, key=lambda c: c.dims["B"]):
    call = _decode.spec.draw(case, device="cuda")
    tables = {"": call}
    if call["block_table"] is not None:
        t = call["block_table"]
        tables = {"random": call}
    calls, want, bad = {}, None, []
    for tn, c in tables.items():
        want = [x.float() for x in run("lanes", CFG["8x3"], tuple(c.values()))]
        for name in TEXTS:
            for cn, cfg in CFG.items():
                got = run(name, cfg, tuple(c.values()))
                e = (got[0].float() - want[0]).abs().max().item()
                if not e < 1e-2: bad.append((tn, name, cn, e))
                calls[f"{tn} {name} {cn}"] = lambda name=name, cfg=cfg, a=tuple(c.values()): run(name, cfg, a)
    n = call["k_cache"].numel() * 2
    a, b = torch.empty(n, dtype=torch.uint8, device="cuda"), torch.empty(n, dtype=torch.uint8, device="cuda")
    calls["copy"] = lambda: b.copy_(a)
    t = {k: x.us for k, x in timing.compare(calls, torch.device("cuda", 0), budget_ms=8.0, rounds=60).timings.items()}
    print(case.id[:44], "bad", bad)
    print("   ", "  ".join(f"{k} {u:.1f}" for k, u in t.items()), flush=True)
