"""dec65, third: what may land. usage: PYTHONPATH=src python3 .gpu/dec65/lab3.py [seconds, 40 | dry]
c: the second kernel goes through its code once before it waits (-.4 us where there are splits); cn: and is launched three tiles earlier (-.1 more or +.5); cl, cln: the same with loads that are made in both turns; swap, c2: key heads beside each other, in clusters of two (-.2, -.8 at (16, 8192));
cc2: both; pre_l, pre_p: the first row of K and V asked for before the length is known, contiguous (-.5); 8x2: two stages. Tables: groups: 2 MB of pages in any order, in order within; inside: any order within 2 MB:
predicted: both as fast as in order, if many pages of 2 MB at once are what costs."""
import functools, multiprocessing, sys, time
from pathlib import Path
import torch
H = Path(__file__).resolve().parent
import rooftile.ops.attention_decode.api  # noqa
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.core.spec import Case
from rooftile.cuda import compile as compiler
from rooftile.cuda.launch import launch as REAL, recording
from rooftile.cuda.source import Source
from rooftile.ops.attention_decode import fragments_kernels as f
S = {p.stem: Source(p) for p in sorted(H.glob("*.cu"))}
MAIN, N, STAMP, SIZE, SPLITS = f.V2, 16, [None], [None], f.splits_of
SWAPPED = ("swap", "c2", "cc2", "ccc")

def run(name, n, config, call):
    kernel = OPS["attention_decode"].kernel("cuda.v2_fragments")
    config = config or kernel.pick(call)
    k = call["k_cache"]
    magic = (1 << 30) // max(k.shape[1] // 16, 1) + 1
    def go(s, instance, grid, block, *a, **kw):
        if name == "main": return REAL(MAIN, instance, grid, block, *a, **kw)
        more, shares = (), instance.startswith("shares")
        if not shares: more = ()
        if name.startswith("st_"):
            if shares: more, SIZE[0] = (magic, STAMP[0]), (grid[0] * grid[1] * grid[2], block // 32)
            else: more = (SIZE[0][0] * SIZE[0][1] * N, STAMP[0])
        if shares and name in SWAPPED: grid = (grid[1], grid[0], grid[2])
        return REAL(S[name], instance, grid, block, *a, *more, **kw)
    f.launch = go
    if n: f.splits_of = lambda *a: (n, 0.0)
    try: return kernel.run(*call.values(), config=config)
    finally: f.launch, f.splits_of = REAL, SPLITS

def compile_one(job):
    path, instance = job
    try: k = compiler.compiled(Source(Path(path)), instance, "sm_90a")
    except Exception as e: return f"{path} {instance} {type(e).__name__} {str(e)[:300]}"
    return f"{Path(path).stem} {instance} spills {k.spill_bytes}" if k.spill_bytes else None
DRY = "dry" in sys.argv

def case(b, s, page):
    for c in OPS["attention_decode"].spec.cases:
        d = c.dims
        if "bench" in c.use and d["T"] == 1 and d["B"] == b and d["S"] * d["N"] == s and (d["S"] == page if page else d["N"] == 1) and not c.id.startswith("host"): return c
    raise LookupError((b, s, page))
def ordered(call):
    t = call["block_table"]
    return {**call, "block_table": torch.arange(t.numel(), device=t.device, dtype=t.dtype).view(t.shape)}
def heads(call): return {**call, **{x: call[x].transpose(1, 2).contiguous().transpose(1, 2) for x in ("k_cache", "v_cache")}}

E, T2 = {"warps": 8, "stages": 3}, {"warps": 8, "stages": 2}
SETS = [  # title, b, s, page, {table: (version, splits or None, config)}
    ("(1, 65536) 64", 1, 65536, 64, {
        "row": (*((n, 0, None) for n in ("main", "c", "cn", "cl", "cln", "swap", "c2", "cc2", "ccc", "pre_l", "pre_p")), ("cc2", 0, T2)),
        "pages": (*((n, 0, None) for n in ("main", "c", "cn", "cl", "cln", "swap", "c2", "cc2")), ("cc2", 0, T2)),
        "order": (("main", 0, None),), "groups": (("main", 0, None),), "inside": (("main", 0, None),)}),
    ("(16, 8192) 16", 16, 8192, 16, {
        "row": (*((n, 0, None) for n in ("main", "swap", "c2", "ccc", "pre_l", "pre_p")), ("main", 0, T2), ("c2", 0, T2)),
        "pages": (*((n, 0, None) for n in ("main", "swap", "c2")), ("main", 0, T2), ("c2", 0, T2)),
        "order": (("main", 0, None),), "groups": (("main", 0, None),), "inside": (("main", 0, None),)}),
    ("(64, 2048) 64", 64, 2048, 64, {
        "row": (*((n, 0, None) for n in ("main", "swap", "c2", "ccc", "pre_l", "pre_p")),),
        "pages": (*((n, 0, None) for n in ("main", "swap", "c2")),), "order": (("main", 0, None),), "groups": (("main", 0, None),), "inside": (("main", 0, None),)}),
]
def grouped(call, inside):
    t, page = call["block_table"], call["k_cache"].shape[1]
    n, each = t.numel(), min(t.numel(), (2 << 20) // (page * call["k_cache"].shape[2] * 256))
    gen = torch.Generator().manual_seed(1)
    m = -(-n // each)
    x = torch.stack([torch.randperm(each, generator=gen) for _ in range(m)]) if inside else torch.arange(each).repeat(m, 1)
    x = (x + (torch.arange(m) if inside else torch.randperm(m, generator=gen))[:, None] * each).view(-1)
    return {**call, "block_table": x[x < n].to(t.device, t.dtype).view(t.shape)}
def calls_of(b, s, page, device, small=False):
    out = []
    for p in (0, page):
        c = case(b, s, p)
        if small: c = Case({**c.dims, "B": min(b, 2), **({"N": 12 if p == 16 else 5, "M": 24 if p == 16 else 10} if p else {"S": 300, "M": min(b, 2)}), "G": 8, "H": 16}, c.dtype, c.params, c.use)
        out.append(OPS["attention_decode"].spec.draw(c, 0, device))
    return {"row": out[0], "pages": out[1], "order": ordered(out[1]), "groups": grouped(out[1], False), "inside": grouped(out[1], True)}
def versions(rows, calls):
    return [(f"{t} {n}{f' n{k}' if k else ''}{'' if cfg in (None, E) else ' %dx%d' % tuple(cfg.values())}", n, k, cfg, calls[t]) for t, vs in rows[4].items() for n, k, cfg in vs]

def main():
    seconds, began = float(sys.argv[1]) if len(sys.argv) > 1 and not DRY else 40.0, time.time()
    clock = lambda: time.time() - began
    device = torch.device("cpu") if DRY else torch.device("cuda", 0)
    jobs = {}
    if DRY:
        from rooftile.cuda import simulator
        for rows in SETS:
            with torch.no_grad():
                calls = calls_of(*rows[1:4], device, small=True)
                STAMP[0], seen = torch.zeros(1 << 18, dtype=torch.int64), {}
                for title, name, n, cfg, c in versions(rows, calls):
                    with simulator.active("all"): got = run(name, 0, {"warps": 4, "stages": 3}, c)
                    want = seen.setdefault(title.split()[0], got)
                    if not all(torch.equal(a, b) for a, b in zip(got, want)): print("WRONG", rows[0], title)
                    with recording() as s: run(name, 0, cfg or (E if rows[1] != 64 else {"warps": 4, "stages": 3}), c)
                    jobs |= {(str(x.source.path), x.instance): None for x in s}
            print(rows[0], "dry", f"{clock():.0f} s", flush=True)
    else:
        with torch.no_grad():
            for rows in SETS:
                cs = {p: case(*rows[1:3], p) for p in (0, rows[3])}
                fake = {}
                for p, c in cs.items():
                    d = c.dims
                    k = torch.empty(d["M"], d["S"], d["G"], d["D"], dtype=torch.bfloat16, device=device)
                    fake[p] = {"q": torch.empty(d["B"], 1, d["H"], d["D"], dtype=torch.bfloat16, device=device), "k_cache": k, "v_cache": k, "lengths": torch.zeros(d["B"], dtype=torch.int32, device=device),
                               "block_table": torch.zeros(d["B"], d["N"], dtype=torch.int32, device=device) if p else None, "sinks": None, "scale": 0.1, "window": 0, "softcap": 0.0}
                STAMP[0] = torch.zeros(1, dtype=torch.int64, device=device)
                with recording() as s:
                    for _, name, n, cfg, c in versions(rows, {t: fake[0 if "row" in t else rows[3]] for t in rows[4]}): run(name, n, cfg, c)
                jobs |= {(str(x.source.path), x.instance): None for x in s}
                del fake, k
    with multiprocessing.get_context("spawn").Pool(2 if DRY else 14) as pool:
        for x in pool.imap_unordered(compile_one, list(jobs)):
            if x: print("compile", x, flush=True)
    print(f"{len(jobs)} instances at {clock():.0f} s", flush=True)
    if DRY: return
    for rows in SETS:
        if clock() > seconds - 4: print("late", rows[0]); continue
        with torch.no_grad():
            calls = calls_of(*rows[1:4], device)
            runs, seen = {}, {}
            for title, name, n, cfg, c in versions(rows, calls):
                bound = functools.partial(run, name, n, cfg, c)
                try: got = bound(); torch.cuda.synchronize()
                except Exception as e: print(title, "FAILS", type(e).__name__, str(e)[:150], flush=True); continue
                want = seen.setdefault(title.split()[0], got)
                if not (got[0].float() - want[0].float()).abs().max() < 2e-2: print(title, "WRONG", flush=True); continue
                runs[title] = bound
            n = calls["row"]["k_cache"].numel() * 2
            a, b = torch.empty(n, dtype=torch.uint8, device=device).random_(), torch.empty(n, dtype=torch.uint8, device=device)
            runs["copy"] = lambda: b.copy_(a)
            t = timing.compare(runs, device, budget_ms=80, rounds=160)
        print(f"{rows[0]:18} noise {t.noise:.3f}", " | ".join(f"{k} {x.us:.2f}" for k, x in t.timings.items()), f"at {clock():.0f} s", flush=True)
        del runs, calls, seen, a, b, got, want, c, bound
if __name__ == "__main__": main()
