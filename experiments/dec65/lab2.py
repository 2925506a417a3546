"""dec65, second: what is left of a copy. usage: PYTHONPATH=src python3 .gpu/dec65/lab2.py [seconds, 45 | dry]
hm: caches laid out heads first, so that a block's rows lie one behind the other: if the memory minds pieces of 256 bytes from 8 blocks, 2 to 4 % faster. c2, c4, c8: clusters of key heads (n splits:
as many as run at a time), so that they read a key's 2 KB about together: predicted half of hm's gain, and random pages as fast as in order. touch_p, touch_l: the first row of all 32 tiles that were looked up, asked for
at once: -.5 us if random pages wait for the page walks. n14: as main if 112 multiprocessors fill the memory. nothing: what of a call is the launch's, by shared memory: predicted 2 us more with 192 KB."""
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
SWAPPED = ("swap", "c2", "c4", "c8", "st_c8", "st_c4")

def run(name, n, config, call):
    kernel = OPS["attention_decode"].kernel("cuda.v2_fragments")
    config = config or kernel.pick(call)
    k = call["k_cache"]
    magic = (1 << 30) // max(k.shape[1] // 16, 1) + 1
    def go(s, instance, grid, block, *a, **kw):
        if name == "main": return REAL(MAIN, instance, grid, block, *a, **kw)
        more, shares = (magic,), instance.startswith("shares")
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

E, T2, TW = {"warps": 8, "stages": 3}, {"warps": 8, "stages": 2}, {"warps": 12, "stages": 2}
SETS = [  # title, b, s, page, {table: (version, splits or None, config, tag)}
    ("(1, 65536) 64", 1, 65536, 64, {
        "row": (("main", 0, None), ("main", 14, E), ("main", 15, E), ("main", 0, T2), ("main", 0, TW), ("c8", 14, E), ("c8", 16, E), ("c4", 14, E), ("c4", 16, E), ("c2", 16, E)),
        "hmrow": (("main", 0, None), ("main", 14, E)),
        "pages": (("main", 0, None), ("main", 14, E), ("main", 0, T2), ("c8", 14, E), ("c8", 16, E), ("c4", 14, E), ("c4", 16, E), ("c2", 16, E), ("touch_p", 0, None), ("touch_l", 0, None)),
        "hmpages": (("main", 0, None),), "order": (("main", 0, None), ("c8", 14, E))}),
    ("(64, 2048) 64", 64, 2048, 64, {
        "row": (("main", 0, None), ("c8", 0, None), ("c4", 0, None), ("c2", 0, None)), "hmrow": (("main", 0, None),),
        "pages": (("main", 0, None), ("c8", 0, None), ("c4", 0, None), ("c2", 0, None), ("touch_p", 0, None), ("touch_l", 0, None)), "hmpages": (("main", 0, None),), "order": (("main", 0, None),)}),
    ("(16, 8192) 16", 16, 8192, 16, {
        "row": (("main", 0, None), ("c4", 0, None), ("c2", 0, None), ("main", 0, T2)), "hmrow": (("main", 0, None),),
        "pages": (("main", 0, None), ("c4", 0, None), ("c2", 0, None), ("touch_p", 0, None), ("touch_l", 0, None)), "hmpages": (("main", 0, None),)}),
]
def calls_of(b, s, page, device, small=False):
    out = []
    for p in (0, page):
        c = case(b, s, p)
        if small: c = Case({**c.dims, "B": min(b, 2), **({"N": 12 if p == 16 else 5, "M": 24 if p == 16 else 10} if p else {"S": 300, "M": min(b, 2)}), "G": 8, "H": 16}, c.dtype, c.params, c.use)
        out.append(OPS["attention_decode"].spec.draw(c, 0, device))
    return {"row": out[0], "hmrow": heads(out[0]), "pages": out[1], "hmpages": heads(out[1]), "order": ordered(out[1])}
def versions(rows, calls):
    return [(f"{t} {n}{f' n{k}' if k else ''}{'' if cfg in (None, E) else ' %dx%d' % tuple(cfg.values())}", n, k, cfg, calls[t]) for t, vs in rows[4].items() for n, k, cfg in vs]

EVENTS = ("look", "len", "asked", "t0", "t1", "t2", "t3", "loop", "bar", "join", "end")
def stamps(title, name, n, call, device):
    STAMP[0] = torch.zeros(1 << 18, dtype=torch.int64, device=device)
    flush, lines, took, tenths, within = torch.empty(timing.FLUSH_BYTES, dtype=torch.uint8, device=device), [], [], [], []
    for rep in range(13):
        timing._reset_persisting(device)
        flush.fill_(rep)
        torch.cuda._sleep(400_000)
        a, e = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        a.record(); run(name, n, None, call); e.record(); e.synchronize()
        if rep < 3: continue
        took.append(a.elapsed_time(e) * 1e3)
        blocks, warps = SIZE[0]
        x = STAMP[0][: blocks * warps * N].view(blocks * warps, N).double().cpu()
        rate = ((x[:, 12] - x[:, 1]) / (x[:, 13] - x[:, 0])).median()
        begin = x[:, 0].min()
        at = ((x[:, 2:13] - x[:, 1:2]) / rate + x[:, :1] - begin) / 1e3
        lines.append(torch.stack([torch.stack([y.min(), y.median(), y.max()]) for y in [(x[:, 0] - begin) / 1e3, *at.unbind(1)]]))
        loop = at[:, 7].view(blocks, warps)
        tenths.append(torch.quantile(loop.max(1).values, torch.tensor([0, .05, .1, .25, .5, .75, .9, .95, 1], dtype=torch.float64)))
        within.append((loop.max(1).values - loop.min(1).values).median())
    m, q = torch.stack(lines).median(0).values, torch.stack(tenths).median(0).values
    print(f"{title} {name} {sorted(took)[5]:.1f} us:", " ".join(f"{i} {a:.1f}/{b:.1f}/{c:.1f}" for i, (a, b, c) in zip(("begin", *EVENTS), m.tolist()) if i in ("begin", "asked", "t0", "t3", "loop", "end")),
          "blocks' loops", " ".join(f"{v:.1f}" for v in q.tolist()), f"within {torch.stack(within).median():.1f}", flush=True)

def main():
    seconds, began = float(sys.argv[1]) if len(sys.argv) > 1 and not DRY else 45.0, time.time()
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
                    want = seen.setdefault(title.split()[0].removeprefix("hm"), got)
                    if not all(torch.equal(a, b) for a, b in zip(got, want)): print("WRONG", rows[0], title)
                    with recording() as s: run(name, 0, cfg or (E if rows[1] != 64 else {"warps": 4, "stages": 3}), c)
                    jobs |= {(str(x.source.path), x.instance): None for x in s}
                with recording() as s: [run(n, 0, E, calls[t]) for n in ("st_base", "st_c8", "st_c4") for t in ("row", "pages")]
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
                    for n in ("st_base", "st_c8", "st_c4"): run(n, 0, None, fake[0]), run(n, 0, None, fake[rows[3]])
                jobs |= {(str(x.source.path), x.instance): None for x in s}
                del fake, k
    jobs[str(S["_nothing"].path), "nothing"] = None
    with multiprocessing.get_context("spawn").Pool(2 if DRY else 14) as pool:
        for x in pool.imap_unordered(compile_one, list(jobs)):
            if x: print("compile", x, flush=True)
    print(f"{len(jobs)} instances at {clock():.0f} s", flush=True)
    if DRY: return
    one = torch.zeros(1, dtype=torch.int32, device=device)
    for rows in SETS:
        if clock() > seconds - 4: print("late", rows[0]); continue
        with torch.no_grad():
            calls = calls_of(*rows[1:4], device)
            if rows[1] != 16:
                for t, kind, n in (("row", "st_base", 0), ("pages", "st_base", 0), ("hmrow", "st_base", 0), ("row", "st_c8", 14 if rows[1] == 1 else 0), ("row", "st_c4", 0)):
                    try: stamps(f"{rows[0]} {t}", kind, n, calls[t], device)
                    except Exception as e: print("stamps", t, kind, type(e).__name__, str(e)[:200], flush=True)
            runs, seen = {}, {}
            for title, name, n, cfg, c in versions(rows, calls):
                bound = functools.partial(run, name, n, cfg, c)
                try: got = bound(); torch.cuda.synchronize()
                except Exception as e: print(title, "FAILS", type(e).__name__, str(e)[:150], flush=True); continue
                want = seen.setdefault(title.split()[0].removeprefix("hm").replace("order", "o"), got)
                if not (got[0].float() - want[0].float()).abs().max() < 2e-2: print(title, "WRONG", flush=True); continue
                runs[title] = bound
            for t in ("row", "pages"):
                empty = {**calls[t], "lengths": torch.zeros_like(calls[t]["lengths"])}
                runs[f"{t} of no keys"] = functools.partial(run, "main", 0, None, empty)
            for kb in (0, 96, 192): runs[f"nothing {kb} KB"] = functools.partial(REAL, S["_nothing"], "nothing", 128, 256, one, 0, shared=kb * 1024)
            n = calls["row"]["k_cache"].numel() * 2
            a, b = torch.empty(n, dtype=torch.uint8, device=device).random_(), torch.empty(n, dtype=torch.uint8, device=device)
            runs["copy"] = lambda: b.copy_(a)
            t = timing.compare(runs, device, budget_ms=60, rounds=120)
        print(f"{rows[0]:18} noise {t.noise:.3f}", " | ".join(f"{k} {x.us:.2f}" for k, x in t.timings.items()), f"at {clock():.0f} s", flush=True)
        del runs, calls, seen, a, b, got, want, c, bound
if __name__ == "__main__": main()
