"""dec65: where paged decoding's 2 us go. usage: PYTHONPATH=src python3 .gpu/dec65/lab.py [seconds, 45 | dry]
Floors: (1, 65536) 268 MB: 64 us at 4.2 TB/s; the others 537 MB: 128. Operations: a tenth of the tensor cores' rate.
Predicted, (1, 65536) in pages: magic -.1 us, first -.4 (two lookups of one sector, not 32 sectors, and no division before them), first_e -.8 (combine stands by from the start),
first_q 0 to -.5 (queries are asked for before 128 KB a multiprocessor of keys), first_ec -.5 more (the second kernel's code is there when it is wanted), first_ecj -.5 more if the way out waits for its code, _256 0 to -1, first_p worse; _w -.5 more if random order costs cold TLBs; in order: 1 us less than random for all. first_a, contiguous: -.5 (first tiles asked of the L2 before the length is known)."""
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
MAIN, N, STAMP = f.V2, 16, [None]

def run(name, op, config, call):
    kernel = OPS[op].kernel("cuda.v2_fragments")
    config = config or kernel.pick(call)
    k = call["k_cache"]
    magic = (1 << 30) // max(k.shape[1] // 16, 1) + 1
    def go(s, instance, grid, block, *a, **kw):
        if name == "main": return REAL(MAIN, instance, grid, block, *a, **kw)
        more = (magic,) if instance.startswith("shares") else ()
        if name.startswith("st_"):
            if more: more, SIZE[0] = (magic, STAMP[0]), (grid[0] * grid[1] * grid[2], block // 32)
            else: more = (SIZE[0][0] * SIZE[0][1] * N, STAMP[0])
        return REAL(S[name], instance, grid, block, *a, *more, **kw)
    f.launch = go
    try: return kernel.run(*call.values(), config=config)
    finally: f.launch = REAL
SIZE = [None]

def compile_one(job):
    path, instance = job
    try: k = compiler.compiled(Source(Path(path)), instance, "sm_90a")
    except Exception as e: return f"{path} {instance} {type(e).__name__} {str(e)[:300]}"
    return f"{Path(path).stem} {instance} spills {k.spill_bytes}" if k.spill_bytes else (f"{Path(path).stem} {instance[-40:]} {k.registers}" if DRY else None)
DRY = "dry" in sys.argv

def case(op, b, s, page):
    for c in OPS[op].spec.cases:
        d = c.dims
        if "bench" in c.use and d["T"] == 1 and d["B"] == b and d["S"] * d["N"] == s and (d["S"] == page if page else d["N"] == 1) and not c.id.startswith("host"): return c
    raise LookupError((b, s, page))

def ordered(call):
    t = call["block_table"]
    return {**call, "block_table": torch.arange(t.numel(), device=t.device, dtype=t.dtype).view(t.shape)}

D16, D8 = "attention_decode", "attention_decode_e4m3"
FOUR = {"warps": 4, "stages": 3}
SETS = [  # title, op, b, s, page, contiguous versions, paged ones, those in order
    ("(1, 65536) 64", D16, 1, 65536, 64, ("main", "base_e", "first_e", "first_a", "first_ec", "first_ecj", "first_q", "first_qc", "first_p", "first_256"),
     ("main", "base", "magic", "first", "base_e", "base_w", "first_e", "first_w", "first_ec", "first_ecj", "first_q", "first_qc", "first_p", "first_256"), ("base", "first", "first_e", "first_w")),
    ("(64, 2048) 64", D16, 64, 2048, 64, ("main", "first_e", "first_ecj", "first_a", "first_q", "first_p", "first_256"), ("main", "magic", "first", "first_e", "first_ecj", "first_w", "first_q", "first_p"), ("base", "first")),
    ("(16, 8192) 16", D16, 16, 8192, 16, ("main", "first_e", "first_ecj", "first_a", "first_q", "first_p"), ("main", "magic", "first", "first_e", "first_ecj", "first_w", "first_q"), ("base", "first")),
    ("(16, 8192) 64", D16, 16, 8192, 64, ("main",), ("main", "magic", "first", "first_e", "first_ecj", "first_w", "first_q"), ("base", "first")),
    ("e4m3 (16, 8192) 64", D8, 16, 8192, -64, ("main", "first_a", "first_q"), ("main", "first", "first_e", "first_q"), ("base", "first")),
]

def drawn(op, b, s, page, device, small=False):
    out = []
    for p in (0, abs(page)):
        c = case(op, b, s, p)
        if small: d = {**c.dims, "B": min(b, 2), **({"N": 12 if p == 16 else 5, "M": 24 if p == 16 else 10} if p else {"S": 300, "M": min(b, 2)}), "G": 2, "H": 8}; c = Case(d, c.dtype, c.params, c.use)
        out.append(OPS[op].spec.draw(c, 0, device))
    return out

def versions(rows, call, paged):
    op, (contiguous, inpages, inorder) = rows[1], rows[5:]
    v = [(f"row {n}{tag}", n, cfg, call) for n in contiguous for tag, cfg in ((("", None), (" 4x3", FOUR)) if rows[2] == 1 and n in ("main", "first_e", "first_qc") else (("", None),))]
    v += [(f"pages {n}{tag}", n, cfg, paged) for n in inpages for tag, cfg in ((("", None), (" 4x3", FOUR)) if rows[2] == 1 and n in ("main", "first_e", "first_qc") else (("", None),))]
    order = ordered(paged)
    return v + [(f"order {n}", n, None, order) for n in inorder]

EVENTS = ("look", "len", "asked", "t0", "t1", "t2", "t3", "loop", "bar", "join", "end")
def stamps(title, name, call, device):
    STAMP[0] = torch.zeros(1 << 18, dtype=torch.int64, device=device)
    flush, lines, took = torch.empty(timing.FLUSH_BYTES, dtype=torch.uint8, device=device), [], []
    for rep in range(13):
        timing._reset_persisting(device)
        flush.fill_(rep)
        torch.cuda._sleep(400_000)
        a, e = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        a.record(); run(name, D16, None, call); e.record(); e.synchronize()
        if rep < 3: continue
        took.append(a.elapsed_time(e) * 1e3)
        blocks, warps = SIZE[0]
        x = STAMP[0][: blocks * warps * N].view(blocks * warps, N).double().cpu()
        rate = ((x[:, 12] - x[:, 1]) / (x[:, 13] - x[:, 0])).median()  # cycles a ns
        begin = x[:, 0].min()
        at = ((x[:, 2:13] - x[:, 1:2]) / rate + x[:, :1] - begin) / 1e3
        row = [torch.stack([y.min(), y.median(), y.max()]) for y in [(x[:, 0] - begin) / 1e3, *at.unbind(1)]]
        more = STAMP[0][blocks * warps * N : blocks * warps * N + 32 * 4 * 8].view(-1, 8).double().cpu()
        if blocks == 128: row += [torch.stack([y.min(), y.median(), y.max()]) for y in [(more[:, i] - begin) / 1e3 for i in range(5)] + [(more[::4, 5] - begin) / 1e3]]
        lines.append(torch.stack(row))
    m = torch.stack(lines).median(0).values
    names = ("begin", *EVENTS, "c:begin", "c:wait", "c:done", "c:max", "c:sum", "c:end")
    print(f"{title} {name} {sorted(took)[5]:.1f} us:", " ".join(f"{n} {a:.1f}/{b:.1f}/{c:.1f}" for n, (a, b, c) in zip(names, m.tolist())), flush=True)

def main():
    seconds, began = float(sys.argv[1]) if len(sys.argv) > 1 and not DRY else 45.0, time.time()
    clock = lambda: time.time() - began
    device = torch.device("cpu") if DRY else torch.device("cuda", 0)
    jobs = {}
    if DRY:
        from rooftile.cuda import simulator
        for rows in SETS:
            with torch.no_grad():
                call, paged = drawn(rows[1], *rows[2:5], device, small=True)
                STAMP[0] = torch.zeros(1 << 18, dtype=torch.int64)
                seen = {}
                for title, name, cfg, c in versions(rows, call, paged) + [(f"pages {n}", n, None, paged) for n in ("st_base", "st_first", "st_qc") if rows[1] == D16]:
                    with simulator.active(*(() if name.endswith("j") else ("all",))): got = run(name, rows[1], cfg, c)
                    key = (title.split()[0], "4x3" in title)
                    want = seen.setdefault(key, got)
                    if not all(torch.equal(a, b) for a, b in zip(got, want)): print("WRONG", rows[0], title)
                    with recording() as s: run(name, rows[1], {"warps": 8, "stages": 3} if rows[2] != 64 else FOUR, c)
                    jobs |= {(str(x.source.path), x.instance): None for x in s}
            print(rows[0], "dry", f"{clock():.0f} s", flush=True)
        jobs = {j: None for j in jobs if not j[0].endswith("v2_fragments.cu")}
    else:
        with torch.no_grad():
            for rows in SETS:
                q = {n: None for n in ()}
                op = rows[1]
                calls = []
                for p in (0, abs(rows[4])):
                    c = case(op, *rows[2:4], p)
                    with torch.device("meta"): pass
                    calls.append(c)
                jobs_of(rows, calls, jobs, device)
    with multiprocessing.get_context("spawn").Pool(2 if DRY else 14) as pool:
        for x in pool.imap_unordered(compile_one, list(jobs)):
            if x: print("compile", x, flush=True)
    print(f"{len(jobs)} instances at {clock():.0f} s", flush=True)
    if DRY: return
    for rows in SETS:
        if clock() > seconds - 4: print("late", rows[0]); continue
        with torch.no_grad():
            call, paged = drawn(rows[1], *rows[2:5], device)
            if rows[0] in ("(1, 65536) 64", "(64, 2048) 64"):
                for name, kind, c in (("row", "st_base", call), ("pages", "st_base", paged), ("order", "st_base", ordered(paged)), ("pages", "st_first", paged), ("row", "st_qc", call), ("pages", "st_qc", paged)):
                    try: stamps(f"{rows[0]} {name}", kind, c, device)
                    except Exception as e: print("stamps", name, kind, type(e).__name__, str(e)[:200], flush=True)
            runs, seen = {}, {}
            for title, name, cfg, c in versions(rows, call, paged):
                bound = functools.partial(run, name, rows[1], cfg, c)
                try: got = bound(); torch.cuda.synchronize()
                except Exception as e: print(title, "FAILS", type(e).__name__, str(e)[:150], flush=True); continue
                want = seen.setdefault((title.split()[0], "4x3" in title), got)
                if not all(torch.equal(a, b) for a, b in zip(got, want)): print(title, "WRONG", flush=True); continue
                runs[title] = bound
            n = call["k_cache"].numel() * call["k_cache"].itemsize
            a, b = torch.empty(n, dtype=torch.uint8, device=device).random_(), torch.empty(n, dtype=torch.uint8, device=device)
            runs["copy"] = lambda: b.copy_(a)
            t = timing.compare(runs, device, budget_ms=60, rounds=int(min(120, 120)))
        print(f"{rows[0]:18} noise {t.noise:.3f}", " | ".join(f"{k} {x.us:.2f}" for k, x in t.timings.items()), f"at {clock():.0f} s", flush=True)
        del runs, call, paged, seen, a, b

def jobs_of(rows, cases, jobs, device):
    """Instances as the calls would launch them, of tensors that hold one number."""
    calls = []
    for c in cases:
        d = c.dims
        dt = torch.uint8 if rows[1] == D8 else torch.bfloat16
        q = torch.zeros(1, dtype=torch.bfloat16, device=device).expand(d["B"], 1, d["H"], d["D"])
        q = torch.empty(d["B"], 1, d["H"], d["D"], dtype=torch.bfloat16, device=device)
        k = torch.empty(d["M"], d["S"], d["G"], d["D"], dtype=dt, device=device)
        lengths = torch.zeros(d["B"], dtype=torch.int32, device=device)
        scale = {n: torch.ones(d["G"], device=device) for n in ("k_scale", "v_scale")} if rows[1] == D8 else {}
        table = torch.zeros(d["B"], d["N"], dtype=torch.int32, device=device) if d["N"] > 1 else None
        calls.append({"q": q, "k_cache": k, "v_cache": k, "lengths": lengths, **scale, "block_table": table, "sinks": None, "scale": 0.1, "window": 0, "softcap": 0.0})
    STAMP[0] = torch.zeros(1, dtype=torch.int64, device=device)
    with recording() as s:
        for title, name, cfg, c in versions(rows, *calls) + [(n, n, None, c) for n in ("st_base", "st_first", "st_qc") for c in calls if rows[1] == D16 and rows[2] != 16]:
            run(name, rows[1], cfg, c)
    jobs |= {(str(x.source.path), x.instance): None for x in s}

if __name__ == "__main__": main()
