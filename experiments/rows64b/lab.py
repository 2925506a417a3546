"""rows64b: embedding_backward of 768 columns, dropout_add_norm_backward 8192 x 1024, cross_entropy_ahead with a cap. usage: PYTHONPATH=src python3 .gpu/rows64b/lab.py [seconds, 45] [dry]
Bytes over what a copy takes, operations over what issues: embedding 127 MB, copy 34.5 us, ours 48; a token 210 instructions of 248 tokens an SM: 7 us of issue beside 24 of its bytes.
 roll (a token's registers asked for again when it is added) 1 us; zero0/1/2 (so many of a warp's three groups of zeros before the sort is waited for, the rest beside loads) 2 us;
 full (no bounds, addresses once) 1 us; c (keys beside the count: one trip less) 0.6; keep (a token's index kept in the deal) 0.3; half (blocks that come in behind the sort clear beside their loads) 2 us; last/first: reads' policy, cs: zeros' , 0.5. x: noread, only (ends after zeros), nozero, nojoin: what each costs. dropout 84 MB, copy 24, ours 27.7:
 1168 instructions a row are 1.4 us of a turn's 2.9 and unhidden in the last: ahead (mask before the row is waited for) 0.5, end (both sums through shared memory at once) 0.35.
Ahead, capped: 4.2 GB, copy 980, ours 1244; 22 instructions an element are 780 us of issue, 2 MUFU 560: two stations of 1.9 us a block, seven blocks and 4 us of waits: 0.8 of a copy.
 s (a share in four parts, summed up as they come) 1130, sw (first cluster wait behind the sums) 1115, s1 (first part before the target is known) 1090, two terms out 1080."""
import functools, multiprocessing, statistics, sys, time
from pathlib import Path
import torch
H = Path(__file__).resolve().parent
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.core.spec import Case
from rooftile.cuda import compile as compiler
from rooftile.cuda.launch import launch as REAL, recording
from rooftile.cuda.source import Source
import rooftile, rooftile.ops  # noqa
from rooftile.ops._shared import sum_pipeline
from rooftile.ops.embedding import cuda_kernels as E
from rooftile.ops.cross_entropy import cluster_kernels as K
S = {p.stem: Source(p) for p in sorted(H.glob("*.cu"))}
BF, F32 = torch.bfloat16, torch.float32
DRY = "dry" in sys.argv

# ---- embedding
def embed(v, dout, idx, w, tokens, join=True, deal=None):
    kept, kept_deal = E.launch, E.DEALT
    def go(s, i, *a, **k):
        if i.startswith("join") and not join: return
        if i.startswith("sums") and v.startswith("e_c") and v != "e_cs": a = (*a, idx.numel())
        REAL(s, i, *a, **k)
    E.launch = go
    if deal: E.DEALT = S[deal]
    try: return E._balanced(S[v], E._by_parts)(dout, idx, w, -1, config={"tokens": tokens, "span": 16, "warps": 8})
    finally: E.launch, E.DEALT = kept, kept_deal
EV = ["e_base", "e_roll", "e_zero0", "e_zero1", "e_zero2", "e_full", "e_rfull", "e_rz1", "e_rz2", "e_rz1full", "e_z1full", "e_last", "e_first", "e_cs", "e_cnt", "e_cfull", "e_cz1", "e_cz2", "e_cz1full", "e_crz1full", "e_cz1last", "e_half", "e_chalf", "e_halffull", "e_chalflast", "e_rhalf"]
NOT32 = ("e_rz1", "e_rfull", "e_cs", "e_cz1last", "e_chalflast", "e_zero0", "e_rz2", "e_crz1full")
EX = ["e_noread", "e_only", "e_nozero"]
EMB = [(32768, 50304, 768, BF, EV, 4), (32768, 50304, 768, F32, [n for n in EV if n not in NOT32], 4), (16384, 128256, 4096, BF, ["e_base", "e_roll", "e_full", "e_rfull", "e_cfull", "e_last", "e_first"], 2)]
if DRY: EMB = [(400, 300, 768, BF, EV, 4), (200, 200, 768, F32, [n for n in EV if n not in NOT32], 4), (100, 200, 1024, BF, ["e_base", "e_roll", "e_full", "e_rfull", "e_cfull", "e_last", "e_first"], 2)]
if DRY: E.processors = lambda x: 8
def prefix(dout, idx, w, last):  # the launches before the sums
    kept, n = E.launch, [0]
    def go(*a, **k):
        n[0] += 1
        if n[0] <= last: REAL(*a, **k)
    E.launch = go
    try: E._balanced(S["e_base"], E._by_parts)(dout, idx, w, -1, config={"tokens": 4, "span": 16, "warps": 8})
    finally: E.launch = kept
# ---- norms
EVENLY = sum_pipeline.evenly
def norm(v, op, call, every=False):
    kept, sum_pipeline.V3 = sum_pipeline.V3, S[v]
    if every: sum_pipeline.evenly = lambda rows, blocks: blocks
    k = OPS[op].kernel("cuda.v3_pipeline")
    try: return k.bound(k.heuristic(call))(*call.values())
    finally: sum_pipeline.V3, sum_pipeline.evenly = kept, EVENLY
DR = {"p": 0.1, "eps": 1e-5}
d, al = "dropout_add_norm_backward", "add_layernorm_backward"
NORM = [(d, (8192, 1024), {**DR, "norm": "layer"}), (d, (32768, 768), {**DR, "norm": "layer", "affine": "float32"}), (d, (16384, 4096), {**DR, "norm": "layer"}), (d, (16384, 4096), {**DR, "norm": "rms", "affine": "weight"}),
        (al, (32768, 768), {"eps": 1e-5, "affine": "float32", "stream": "io", "lacks": "f32"}), (d, (65536, 1024), {**DR, "norm": "layer"})]
if DRY: NORM = [(o, (37, n), p) for o, (m, n), p in NORM[:5]]
DV = ["d_base", "d_ahead", "d_end", "d_both"]
# ---- cross entropy
def ahead(v, x, t, cap, threads, cluster=8):
    kept, K.V7 = K.V7, S[v]
    try: return K.ahead(x, t, -100, 0.0, 1e-4 if cap else 0.0, cap, config={"cluster": cluster, "threads": threads})
    finally: K.V7 = kept
CV = ["c_base", "c_staged", "c_w", "c_sw", "c_s1", "c_s1n", "c_sall", "c_stwo", "c_s1two", "c_last", "c_first", "c_sfirst", "c_s1last", "c_s1first"]
CX = ["c_x_alone", "c_x_same", "c_x_quiet", "c_x_sum"]
PLAIN = ["c_base", "c_staged", "c_sw", "c_s1", "c_sall", "c_last", "c_first"]

def compile_one(job):
    try: compiler.compiled(Source(Path(job[0])), job[1], "sm_90a")
    except Exception as e: return f"{job} {type(e).__name__} {str(e)[:200]}"
def flat(x): return [t for t in (x if isinstance(x, tuple) else (x,)) if t is not None and t.numel()]
def same(a, b): return all(torch.equal(x, y) for x, y in zip(flat(a), flat(b)))
def draw(op, dims, p, device): return OPS[op].spec.draw(Case({"M": dims[0], "N": dims[1]}, BF, p), 0, device)

def main():
    seconds, began = float(sys.argv[1]) if len(sys.argv) > 1 else 45.0, time.time()
    clock = lambda: time.time() - began
    device = torch.device("cpu") if DRY else torch.device("cuda", 0)
    gen = torch.Generator(device=device).manual_seed(0)
    def rand(*shape, dtype=BF): return torch.randn(*shape, device=device, dtype=F32 if DRY else dtype, generator=gen).to(dtype)
    def index(v, m): return torch.randint(0, v, (m,), device=device, generator=gen)
    def show(title, calls, moved, marks={}, budget=60):
        src = torch.empty(max(1, moved // 2), dtype=torch.uint8, device=device).random_(generator=gen); to = torch.empty_like(src)
        calls = {"copy": lambda: to.copy_(src), **calls}
        c = timing.compare(calls, device, budget_ms=budget, rounds=100)
        cp = c.timings["copy"].us
        print(f"{title}: copy {cp:.2f} noise {c.noise:.3f} at {clock():.0f} s", flush=True)
        line = [f"{u.us:8.2f} {cp / u.us:.3f} {k}{marks.get(k, '')}" for k, u in sorted(c.timings.items(), key=lambda i: i[1].us) if k != "copy"]
        for i in range(0, len(line), 5): print(" ;".join(f"{x:<27}" for x in line[i:i + 5]), flush=True)
    jobs = {}
    with torch.no_grad(), recording() as seen:
        for m, v, n, dt, names, tokens in EMB:
            for name in names + EX: embed(name, rand(8, n, dtype=dt), index(v, 8), torch.empty(v, n, device=device, dtype=dt), tokens)
        embed("e_base", rand(8, 768), index(50304, 8), torch.empty(50304, 768, device=device, dtype=BF), 4, True, "k_keep")
        embed("e_roll", rand(8, 768), index(50304, 8), torch.empty(50304, 768, device=device, dtype=BF), 3)
        for op, dims, p in NORM:
            call = draw(op, (1024 if not DRY else 37, dims[1]), p, device)
            for name in DV: norm(name, op, call)
        x, t = rand(8, 128256), index(128256, 8)
        for name in CV + CX:
            for th in (128, 256): ahead(name, x, t, 30.0, th)
        for name in ("c_base", "c_s1"): ahead(name, x, t, 30.0, 256, 4), ahead(name, x, t, 30.0, 64)
        for name in PLAIN: ahead(name, x, t, 0.0, 256)
    jobs = {(str(s.source.path), s.instance): None for s in seen}
    if not DRY or "compile" in sys.argv:
        with multiprocessing.get_context("spawn").Pool(2 if DRY else 14) as pool:
            for bad in pool.imap_unordered(compile_one, list(jobs)):
                if bad: print("compile", bad, flush=True)
    print(f"{len(jobs)} instances at {clock():.0f} s", flush=True)
    sync = (lambda: None) if DRY else torch.cuda.synchronize
    def tried(title, runs, free=()):
        good, marks, right = {}, {}, None
        for k, f in runs.items():
            try: got = f(); sync()
            except Exception as e: print(title, k, "FAILS", type(e).__name__, str(e)[:150], flush=True); continue
            if k in free: good[k] = f; continue
            if right is None: right = got
            if not same(got, right):
                if not all(torch.allclose(a.float(), b.float(), rtol=2e-2, atol=2e-3) for a, b in zip(flat(got), flat(right))): print(title, k, "WRONG", flush=True); continue
                marks[k] = " ~"
            good[k] = f
        return good, marks
    with torch.no_grad():
        for i, (m, v, n, dt, names, tokens) in enumerate(EMB):
            title = f"embedding_backward {m} {v} {n} {str(dt)[6:]}"
            if clock() > seconds - 3: print("late", title); continue
            idx, w = index(v, m), torch.empty(v, n, device=device, dtype=dt)
            whole = torch.randint(-8, 9, (m, n), device=device, generator=gen).to(dt)
            runs = {name[2:]: (lambda name=name: embed(name, DOUT[0], IDX[0], w, tokens)) for name in names}
            free = []
            if i == 0:
                runs["roll t3"] = lambda: embed("e_roll", DOUT[0], IDX[0], w, 3)
                runs["base t2"] = lambda: embed("e_base", DOUT[0], IDX[0], w, 2)
                runs |= {"x " + name[2:]: (lambda name=name: embed(name, DOUT[0], IDX[0], w, tokens)) for name in EX}
                for name in ("e_base", "e_cz1"): runs[name[2:] + " keep"] = lambda name=name: embed(name, DOUT[0], IDX[0], w, tokens, True, "k_keep")
                runs |= {"x nojoin": lambda: embed("e_base", DOUT[0], IDX[0], w, tokens, False), "x deal": lambda: prefix(DOUT[0], IDX[0], w, 1), "x deal sort": lambda: prefix(DOUT[0], IDX[0], w, 2)}
                free = [k for k in runs if k.startswith("x ")]
            skew = torch.where(torch.rand(m, device=device, generator=gen) < 0.1, 7, idx)
            skew[m // 2:m // 2 + m // 4] = v + 3
            DOUT, IDX = [whole], [skew]
            good, marks = tried(title, runs, free)
            IDX[0] = idx
            good, marks = tried(title, good, free)
            DOUT[0] = rand(m, n, dtype=dt)
            show(title, good, (m + v) * n * dt.itemsize + 8 * m, marks)
            del idx, w, whole, DOUT, IDX, skew, runs, good
        for op, dims, p in NORM:
            title = f"{op[:-9]} {dims} {p.get('norm', '')} {p.get('affine', '')}"
            if clock() > seconds - 3: print("late", title); continue
            call = draw(op, dims, p, device)
            runs = {name[2:]: (lambda name=name: norm(name, op, call)) for name in DV}
            if dims == (8192, 1024): runs["end all SMs"] = lambda: norm("d_end", op, call, True)
            good, marks = tried(title, runs)
            show(title, good, OPS[op].spec.floor_bytes(call), marks)
            del call, good
        for cap, names, threads in ((30.0, CV + CX, (128, 8)), (30.0, ["c_base", "c_s1", "c_sall"], (256, 8)), (30.0, ["c_base", "c_s1"], (256, 4)), (30.0, ["c_s1"], (64, 8)), (0.0, PLAIN, (256, 8))):
            title = f"cross_entropy_ahead cap {cap} threads, cluster {threads}"
            if clock() > seconds - 3: print("late", title); continue
            M, V = (8192, 128256) if not DRY else (6, 128256 // 2)
            x, t = rand(M, V), index(V, M)
            t[2] = -100
            buf, flush = x.clone(), torch.empty((256 << 20) if not DRY else 8, dtype=torch.uint8, device=device)
            right, marks, runs = {}, {}, {}
            few = 6 if DRY else 264
            for name in names:
                runs[name] = lambda name=name: ahead(name, buf, t, cap, *threads)
                for scale in (1.0, 2.0, 9.0):
                    y = (x[:few] * scale).contiguous(); y0 = y.clone()
                    try: loss = ahead(name, y, t[:few], cap, *threads); sync()
                    except Exception as e: print(title, name, "FAILS", type(e).__name__, str(e)[:150], flush=True); runs.pop(name, None); break
                    if "_x_" in name: break
                    if scale not in right: right[scale] = (loss, y)
                    l, g = right[scale]
                    if not (torch.equal(l, loss) and torch.equal(g, y)):
                        e = float((l - loss).abs().max()), float(((g.float() - y.float()).abs() / (g.float().abs() + 1e-9)).max())
                        marks[name] = f" ~{e[0]:.0e},{e[1]:.0e}"
            T, C = {k: [] for k in runs}, []
            def timed(f):
                a, b = torch.cuda.Event(True), torch.cuda.Event(True)
                flush.zero_(); a.record(); f(); b.record(); sync()
                return a.elapsed_time(b) * 1e3
            if DRY: print(title, "ok", marks); continue
            for r in range(9):
                for k, f in runs.items():
                    buf.copy_(x); T[k].append(timed(f))
                C.append(timed(lambda: buf.copy_(x)))
            cp = statistics.median(C)
            print(f"{title} {M} x {V}: copy {cp:.1f} at {clock():.0f} s", flush=True)
            line = [f"{u:7.1f} {cp / u:.3f} {k[2:]}{marks.get(k, '')}" for u, k in sorted((statistics.median(v[1:]), k) for k, v in T.items())]
            for i in range(0, len(line), 5): print(" ;".join(f"{z:<29}" for z in line[i:i + 5]), flush=True)
            del x, buf, flush
if __name__ == "__main__":
    if DRY:
        from rooftile.cuda import simulator
        with simulator.active(): main()
    else: main()
