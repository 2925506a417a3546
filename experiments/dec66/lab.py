"""dec66: decode of 8 bits. usage: PYTHONPATH=src python3 .gpu/dec66/lab.py [seconds, 45 | dry]. What each is and what is predicted: NOTES.md.
x_: not the kernel's results, but what bounds it (reads only; reads in clusters; no conversions). hm: caches laid out heads first."""
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
MAIN, OP, KEPT = f.V2, OPS["attention_decode_e4m3"], (f.splits_of, f.KEYS, f.RESIDENT)
DRY = "dry" in sys.argv
KINDS = ("2cvt+lop3", "2cvt+3lop3", "lop3", "2cvt+2lop3", "prmt", "2cvt+lop3+prmt", "hmma", "hmma chain", "movm", "hmma+2(2cvt+lop3)", "hfma2")

def loose(name): return any(x in name for x in ("32", "two", "lean2"))  # other orders of the same sums
def swapped(name): return name.split("_")[-1] in ("c2", "c4", "c8", "cc2")
def run(name, config, call, splits=0):
    kernel = OP.kernel("cuda.v2_fragments")
    pair = "two" in name  # a warp has two key heads: tiles of twice the bytes
    wide = "32" in name or pair
    if pair and (call["k_cache"].stride(2) != 128 or call["v_cache"].stride(2) != 128): raise ValueError("heads are not beside each other")
    if config is None:
        config = kernel.pick(call)
        if wide: config = {"warps": config["warps"] // 2, "stages": 3}
    def go(s, instance, grid, block, *a, **kw):
        if name == "main": return REAL(MAIN, instance, grid, block, *a, **kw)
        if instance.startswith("shares") and pair: grid = (grid[0], grid[1] // 2, grid[2])
        if instance.startswith("shares") and swapped(name): grid = (grid[1], grid[0], grid[2])
        return REAL(S[name], instance, grid, block, *a, **kw)
    f.launch = go
    if wide: f.KEYS = 32
    if wide or config["stages"] == 6: f.RESIDENT = (8, 8)
    if pair: f.splits_of = lambda units, tiles, slots: KEPT[0](units // 2, tiles * 2, slots)
    if splits: f.splits_of = lambda *a: (splits, 0.0)
    try: return kernel.run(*call.values(), config=config)
    finally: f.launch, (f.splits_of, f.KEYS, f.RESIDENT) = REAL, KEPT

def compile_one(job):
    path, instance = job
    try: k = compiler.compiled(Source(Path(path)), instance, "sm_90a")
    except Exception as e: return f"{path} {instance} {type(e).__name__} {str(e)[:300]}"
    if not instance.startswith("shares"): return None
    warps, per = (int(x) for x in instance.rstrip(">").split(",")[-2:])
    most = min(65536 // (warps * 32 * per) // 8 * 8, 255)
    bad = k.spill_bytes or k.registers > most
    return f"{Path(path).stem} {instance} registers {k.registers} of {most} spills {k.spill_bytes}" if bad or DRY else None

def case(b, s, page):
    for c in OP.spec.cases:
        d = c.dims
        if "bench" in c.use and d["T"] == 1 and d["B"] == b and d["S"] * d["N"] == s and (d["S"] == page if page else d["N"] == 1) and not c.id.startswith("host"): return c
    for c in OP.spec.cases:  # as the one of (16, 8192) has it
        d = c.dims
        if "bench" in c.use and d["T"] == 1 and d["B"] == 16 and d["S"] == (page or 8192) and not c.id.startswith("host"):
            return Case({**d, "B": b, **({"S": page, "N": s // page, "M": b * s // page} if page else {"S": s, "N": 1, "M": b})}, c.dtype, c.params, c.use)
    raise LookupError((b, s, page))
def heads(call): return {**call, **{x: call[x].transpose(1, 2).contiguous().transpose(1, 2) for x in ("k_cache", "v_cache")}}

D6, W4 = {"warps": 8, "stages": 6}, {"warps": 4, "stages": 3}
def plain(*names): return tuple((n, None) for n in names)
HM = plain("main", "lean", "x_bare")
OTHERS = (("16 bits, half the keys", 128, 2), ("16 bits, D = 64", 64, 1))  # the same bytes: tiles of twice the bytes, and pieces of 128 bytes with half the work a byte
SETS = [
    ("(16, 8192)", 16, 8192, 64, {
        "row": (*plain("main", "h1", "lean", "lean2", "lean_c2", "lean_c4", "k32", "k32_c2", "two", "c2", "c4", "c8", "pol", "d65_pre_l", "x_bare", "x_bare_c4", "x_bare32", "x_baretwo", "x_nocvt"), ("lean", D6), ("two", W4)),
        "pages": (*plain("main", "h1", "lean", "lean2", "lean_c2", "k32", "two", "c2", "x_bare"), ("lean", D6)), "hmrow": HM}),
    ("(64, 2048)", 64, 2048, 64, {
        "row": (*plain("main", "h1", "lean", "lean2", "lean_c2", "k32", "two", "c2", "x_bare", "x_nocvt"), ("lean", D6), ("two", W4)),
        "pages": (*plain("main", "lean", "lean2", "k32"), ("two", W4)), "hmrow": HM}),
    ("(1, 65536)", 1, 65536, 64, {
        "row": (*plain("main", "lean", "lean2", "lean_c2", "k32", "two", "c2", "d65_c", "d65_cn", "d65_cc2", "d65_pre_l", "x_bare"), ("lean", D6)),
        "pages": plain("main", "lean", "lean2", "k32", "two", "c2", "d65_c", "d65_cn"), "hmrow": HM}),
]
def config_of(b, config): return {"warps": 2, "stages": 6} if config is D6 and b == 64 else config  # eight warps a multiprocessor either way
def calls_of(b, s, page, device, small=False):
    out = []
    for p in (0, page):
        c = case(b, s, p)
        if small: c = Case({**c.dims, "B": min(b, 2), **({"N": 5, "M": 10} if p else {"S": 300, "M": min(b, 2)}), "G": 8, "H": 16}, c.dtype, c.params, c.use)
        out.append(OP.spec.draw(c, 0, device))
    return {"row": out[0], "pages": out[1], "hmrow": heads(out[0])}
def others(b, s, device, real=True):
    out = {}
    for title, d, less in OTHERS:
        k, v = (torch.randn(b, s // less, 8, d, dtype=torch.bfloat16, device=device) if real else torch.empty(1, 1, 8, d, dtype=torch.bfloat16, device=device).expand(b, s // less, 8, d) for _ in "kv")
        out[title] = {"q": torch.randn(b, 1, 32, d, dtype=torch.bfloat16, device=device), "k_cache": k, "v_cache": v, "lengths": torch.full((b,), s // less, dtype=torch.int32, device=device), "block_table": None, "sinks": None,
                      "scale": d**-0.5, "window": 0, "softcap": 0.0}
    return out
def run16(call, config=None):
    kernel = OPS["attention_decode"].kernel("cuda.v2_fragments")
    return kernel.run(*call.values(), config=config or kernel.pick(call))
def versions(rows, calls):
    return [(f"{t} {n}{' %dx%d' % tuple(cfg.values()) if cfg else ''}", n, config_of(rows[1], cfg), calls[t]) for t, vs in rows[4].items() for n, cfg in vs]
def rates(device):
    out, sink = torch.zeros(16, dtype=torch.int64, device=device), torch.zeros(512, dtype=torch.int32, device=device)
    for warps in (4, 16):
        for i in range(len(KINDS)):
            for _ in range(2): REAL(S["micro"], f"micro<{i}>", 1, warps * 32, out, sink, 256)
        t = out.tolist()
        print(f"rates, {warps} warps, cycles a warp's instruction (or group) of a scheduler:", " ".join(f"{k} {t[i] / (256 * 32) / (warps / 4):.2f}" for i, k in enumerate(KINDS)), flush=True)

def main():
    seconds, began = float(sys.argv[1]) if len(sys.argv) > 1 and not DRY else 45.0, time.time()
    clock = lambda: time.time() - began
    device = torch.device("cpu") if DRY else torch.device("cuda", 0)
    jobs = {(str(S["micro"].path), f"micro<{i}>"): None for i in range(len(KINDS))}
    for rows in SETS:
        with torch.no_grad():
            if DRY:
                from rooftile.cuda import simulator
                calls, seen = calls_of(*rows[1:4], device, small=True), {}
                with simulator.active("all"):
                    for c in others(2, 200, device).values(): run16(c, {"warps": 4, "stages": 3})
                for title, name, cfg, c in versions(rows, calls):
                    with simulator.active("all"): got = run(name, {"warps": 4, "stages": cfg["stages"] if cfg else 3}, c)
                    if name.startswith("x_"): continue
                    want = seen.setdefault(title.split()[0].removeprefix("hm"), got)
                    far = max((a.float() - b.float()).abs().max().item() for a, b in zip(got, want))
                    if far > (2e-2 if loose(name) or cfg else 0): print("WRONG", rows[0], title, far)
                print(rows[0], "dry", f"{clock():.0f} s", flush=True)
            fake = {}
            for p in (0, rows[3]):
                d = case(*rows[1:3], p).dims
                k = torch.empty(1, 1, d["G"], d["D"], dtype=torch.uint8, device=device).expand(d["M"], d["S"], d["G"], d["D"])
                fake[p] = {"q": torch.empty(d["B"], 1, d["H"], d["D"], dtype=torch.bfloat16, device=device), "k_cache": k, "v_cache": k, "lengths": torch.zeros(d["B"], dtype=torch.int32, device=device), "k_scale": None, "v_scale": None,
                           "block_table": torch.zeros(d["B"], d["N"], dtype=torch.int32, device=device) if p else None, "sinks": None, "scale": 0.1, "window": 0, "softcap": 0.0}
            with recording() as s:
                for c in others(*rows[1:3], device, real=False).values(): run16(c, {"warps": 4 if rows[1] == 64 else 8, "stages": 3} if DRY else None)
                for _, name, cfg, c in versions(rows, {t: fake[0 if "row" in t else rows[3]] for t in rows[4]}):
                    run(name, cfg or (None if not DRY else {"warps": (4 if rows[1] == 64 else 16) // (2 if "32" in name or "two" in name else 1), "stages": 3}), c)
            jobs |= {(str(x.source.path), x.instance): None for x in s}
            del fake, k
    if DRY: jobs |= {(str(MAIN.path), "combine<__nv_bfloat16, __nv_bfloat16, 128>"): None}
    with multiprocessing.get_context("spawn").Pool(2 if DRY else 14) as pool:
        for x in pool.imap_unordered(compile_one, list(jobs)):
            if x: print("compiled", x, flush=True)
    print(f"{len(jobs)} instances at {clock():.0f} s", flush=True)
    if DRY: return
    try: rates(device)
    except Exception as e: print("rates", type(e).__name__, str(e)[:200], flush=True)
    table = {}
    for rows in SETS:
        if clock() > seconds - 4: print("late", rows[0]); continue
        with torch.no_grad():
            calls = calls_of(*rows[1:4], device)
            runs, seen = {}, {}
            for title, name, cfg, c in versions(rows, calls):
                bound = functools.partial(run, name, cfg, c)
                try: got = bound(); torch.cuda.synchronize()
                except Exception as e: print(rows[0], title, "FAILS", type(e).__name__, str(e)[:150], flush=True); continue
                if not name.startswith("x_"):
                    want = seen.setdefault(title.split()[0], got)
                    far = (got[0].float() - want[0].float()).abs().max().item()
                    same = all(torch.equal(a, b) for a, b in zip(got, want))
                    if not far < 2e-2: print(rows[0], title, "WRONG", far, flush=True); continue
                    if not same and not loose(name) and not cfg: print(rows[0], title, "not the same bits", far, flush=True)
                runs[title] = bound
            for title, c in others(*rows[1:3], device).items():
                runs[title] = functools.partial(run16, c)
            n = calls["row"]["k_cache"].numel()  # half of the cache: it is read and written
            a, b = torch.empty(n, dtype=torch.uint8, device=device).random_(), torch.empty(n, dtype=torch.uint8, device=device)
            runs["copy"] = lambda: b.copy_(a)
            t = timing.compare(runs, device, budget_ms=60, rounds=120)
        table[rows[0]] = {k: x.us for k, x in t.timings.items()}
        print(f"{rows[0]:12} noise {t.noise:.3f} at {clock():.0f} s", flush=True)
        del runs, calls, seen, a, b, got, want, c, bound
    names = dict.fromkeys(k for v in table.values() for k in v)
    print(f"{'us (of copy)':22}" + "".join(f"{s:>18}" for s in table))
    for k in names: print(f"{k:22}" + "".join(f"{v[k]:10.2f} ({v['copy'] / v[k]:.3f})" if k in v else f"{'':18}" for v in table.values()))
if __name__ == "__main__": main()
