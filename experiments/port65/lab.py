"""The portable attention in variants (fw.py, one.py) beside today's and FlashAttention-2. usage: PYTHONPATH=src python3 .gpu/port65/lab.py [seconds, 60]
Predicted: forward T1024 full 328 -> 300 by two programs of 8 warps at 128 registers with descriptors, -> 285 with the second product of a tile beside the next one's exponentials (ALGO=1);
one_pass: dq before dk, its addition beside dk (ORDER=1) 3 to 6 %, dq's zeros one group ahead (ZERO=1) 25 us."""
import functools, multiprocessing as mp, os, sys, time
H = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, H)
import torch
SHAPES = {"T1024": (16, 1024, 16, 128), "T4096": (4, 4096, 16, 128)}
W8 = dict(M=128, N=64, W=8, ST=2, MAXNREG=128)
SK = dict(ALGO=1, CARRY=16)
FW = {
    "base": dict(), "one": dict(ONE=1), "rcp": dict(RCP=1), "one,rcp": dict(ONE=1, RCP=1), "pf264": dict(PF=264), "pf528": dict(PF=528),
    "d1": dict(DESC=1), "d2": dict(DESC=2), "d3": dict(DESC=3), "d1,one,rcp": dict(DESC=1, ONE=1, RCP=1), "d3,one,rcp": dict(DESC=3, ONE=1, RCP=1),
    "w8p": W8, "w8d1": dict(DESC=1, **W8), "w8d2": dict(DESC=2, **W8), "w8d3rcp": dict(DESC=3, RCP=1, **W8), "w8d1one": dict(DESC=1, ONE=1, RCP=1, **W8),
    "w8d2n32s4": dict(DESC=2, M=128, N=32, W=8, ST=4, MAXNREG=128), "n32s3": dict(DESC=2, N=32, ST=3), "n32s2": dict(DESC=2, N=32, ST=2), "n32s4": dict(DESC=2, N=32, ST=4), "p,n32s2": dict(N=32, ST=2, MAXNREG=168),
    "m128w4": dict(DESC=3, M=128, N=64, W=4, ST=2, ONE=1, RCP=1), "m128w4n32": dict(DESC=2, M=128, N=32, W=4, ST=3), "m256w16": dict(DESC=3, M=256, N=64, W=16, ST=2), "m256w8n32": dict(DESC=3, M=256, N=32, W=8, ST=3),
    "m128n128": dict(DESC=2, M=128, N=128, W=8, ST=2), "persist": dict(DESC=2, PERSIST=1), "flat": dict(PERSIST=2, ONE=1, PER=1),
    "sk": dict(DESC=0, ST=2, **SK), "sk1": dict(DESC=1, ST=2, **SK), "sk2": dict(DESC=2, ST=2, **SK), "sk3rcp": dict(DESC=3, ST=2, RCP=1, **SK), "sk2s3": dict(DESC=2, ST=3, **SK), "skn32s3": dict(DESC=2, N=32, ST=3, **SK),
    "sk,w8p": dict(**SK, **W8), "sk,w8d1": dict(DESC=1, **SK, **W8), "sk,w8d2": dict(DESC=2, **SK, **W8), "sk,w8d3rcp": dict(DESC=3, RCP=1, **SK, **W8), "sk,m128w4": dict(DESC=2, M=128, W=4, ST=2, **SK),
    "w8d1pf": dict(DESC=1, PF=264, **W8), "sk,w8d1rcppf": dict(DESC=1, RCP=1, PF=264, **SK, **W8), "sk1pf": dict(DESC=1, ST=2, RCP=1, PF=264, **SK), "d1rcppf": dict(DESC=1, ONE=1, RCP=1, PF=264),
    "sk,m128n128": dict(DESC=2, M=128, N=128, W=8, ST=2, **SK), "sk,n32w8": dict(DESC=2, M=128, N=32, W=8, ST=3, **SK), "sk,p128": dict(M=128, N=128, W=8, ST=2, **SK),
}
WS = {"ws128": dict(DESC=2, WS=1, ONE=1, M=128, N=128, ST=2), "ws64": dict(DESC=2, WS=1, ONE=1, M=128, N=64, ST=3), "wsper": dict(DESC=2, WS=1, ONE=1, M=128, N=128, ST=2, PERSIST=1, PER=1)}
BW = {
    "base": dict(), "order": dict(ORDER=1), "order2": dict(ORDER=2), "late": dict(ORDER=1, LATE=1), "zero": dict(ZERO=1), "both": dict(ORDER=1, ZERO=1), "both,lag2": dict(ORDER=1, ZERO=1, lagx=2),
    "both,pf": dict(ORDER=1, ZERO=1, PF=132), "order,pf": dict(ORDER=1, PF=132), "order,turn1": dict(ORDER=1, TURN=1), "order,turn3": dict(ORDER=1, TURN=3), "both,turn1": dict(ORDER=1, ZERO=1, TURN=1),
    "order,r64w4": dict(ORDER=1, RW=4), "order,r32w2": dict(ORDER=1, RM=32, RW=2), "order,r128w8": dict(ORDER=1, RM=128, RW=8), "order,s32w4": dict(ORDER=1, SM=32, SW=4), "order,s64w4": dict(ORDER=1, SW=4), "order,s128w8": dict(ORDER=1, SM=128),
}
def inputs(shape, n):
    torch.manual_seed(0)
    return tuple(torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for _ in range(n))
def warm(job):
    kind, name, causal = job
    try:
        import fw, one
        b, t, h, d = 16, 1024, 16, 128
        x = inputs((b, t, h, d), 4)
        if kind == "fw": fw.attention(*x[:3], causal, d ** -.5, **FW[name])
        else: one.attention_backward(*x, x[0], torch.zeros(b, h, t, device="cuda"), causal, d ** -.5, **BW[name])
        torch.cuda.synchronize()
    except BaseException as e: return (*job, type(e).__name__, str(e)[:160].replace("\n", " "))
def apart(made, want):
    return max(((x.float() - y.float()).abs().max() / y.float().abs().max()).item() for x, y in zip(made, want))
def ws_child():
    import fw
    from rooftile.core import timing
    q, k, v = inputs(SHAPES["T1024"], 3)
    want = fw.attention(q, k, v, False, 128 ** -.5)
    calls = {"base": lambda: fw.attention(q, k, v, False, 128 ** -.5)}
    for n, kw in WS.items():
        try: made = fw.attention(q, k, v, False, 128 ** -.5, **kw); torch.cuda.synchronize()
        except Exception as e: print(n, type(e).__name__, str(e)[:100].replace("\n", " "), flush=True); continue
        print(n, "apart", apart(made, want), flush=True)
        calls[n] = lambda kw=kw: fw.attention(q, k, v, False, 128 ** -.5, **kw)
    print({n: round(x.us, 1) for n, x in timing.compare(calls, torch.device("cuda", 0), budget_ms=20.0, rounds=20).timings.items()}, flush=True)
if __name__ == "__main__" and sys.argv[1:2] == ["ws"]:
    ws_child()
elif __name__ == "__main__":
    begun = time.time()
    budget = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    import rooftile, rooftile.ops, subprocess, fw, one, triton
    from rooftile.core import timing
    from rooftile.core.kernel import OPS
    jobs = [("bw", n, c) for n in BW for c in (True, False)] + [("fw", n, c) for n in FW for c in (True, False)]
    bad = set()
    pool = mp.get_context("spawn").Pool(14)
    pending = pool.map_async(warm, jobs, chunksize=4)
    try:
        for x in pending.get(timeout=min(30, budget * .5)):
            if x: bad.add(x[:2]); print(*x)
    except mp.TimeoutError: print("warming took too long")
    pool.terminate()
    print(torch.__version__, triton.__version__, "warm after", round(time.time() - begun, 1), flush=True)
    op = OPS["attention"]
    def show(title, m):
        ref = m["fa2"]
        top = sorted(m.items(), key=lambda i: i[1])
        top = [x for i, x in enumerate(top) if i < 12 or x[0] in ("now", "base", "fa2")]
        print(title, " ".join(f"{n}:{u:.1f}({ref / u:.3f})" for n, u in top), flush=True)
    def each(calls, ms):
        for n in list(calls):
            if time.time() - begun > budget: break
        return {n: x.us for n, x in timing.compare(calls, torch.device("cuda", 0), budget_ms=ms, rounds=40).timings.items()}
    def ok(kind, n): return (kind, n) not in bad
    for size, causal in (("T1024", False), ("T1024", True), ("T4096", False), ("T4096", True)):
        if time.time() - begun > budget: print("no time for", size, causal); continue
        q, k, v = inputs(SHAPES[size], 3)
        kern = op.kernel("triton.wide")
        now = kern.bound(kern.configs[0])
        args = (q, k, v, causal, 128 ** -.5)
        want = now(*args)
        calls = {"now": lambda: now(*args)}
        for n, kw in FW.items():
            if not ok("fw", n): continue
            try: made = fw.attention(*args, **kw); torch.cuda.synchronize()
            except Exception as e: print("fw", size, causal, n, str(e)[:80].replace("\n", " ")); bad.add(("fw", n)); continue
            off = apart(made, want)
            if not off < 1e-2: print("fw", size, causal, n, "OFF", off); continue
            calls[n] = lambda kw=kw: fw.attention(*args, **kw)
        qt, kt, vt = (x.transpose(1, 2) for x in (q, k, v))
        def fa2():
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(qt, kt, vt, is_causal=causal)
        calls["fa2"] = fa2
        if size == "T1024" and not causal:
            truth = torch.nn.functional.scaled_dot_product_attention(qt[:2].float(), kt[:2].float(), vt[:2].float())
            print("off truth, now:", apart((want[0][:2].transpose(1, 2),), (truth,)))
            calls["copy"] = lambda x=torch.empty_like(q), y=torch.empty_like(k): (x.copy_(q), y.copy_(k))
        show(f"fw {size} {'causal' if causal else 'full'}", each(calls, 12.0 if size == "T1024" else 14.0))
    for size, causal in (("T1024", True), ("T1024", False), ("T4096", False)):
        if time.time() - begun > budget: print("no time for", size, causal); continue
        q, k, v, g = inputs(SHAPES[size], 4)
        fk = op.kernel("triton.wide"); out, lse = fk.bound(fk.configs[0])(q, k, v, causal, 128 ** -.5)
        args = (g, q, k, v, out, lse, causal, 128 ** -.5)
        kern = op.backward.kernel("triton.one_pass")
        now = kern.bound(kern.configs[0])
        want = now(*args)
        calls = {"now": lambda: now(*args)}
        for n, kw in BW.items():
            if not ok("bw", n): continue
            try: made = one.attention_backward(*args, **kw); torch.cuda.synchronize()
            except Exception as e: print("bw", size, causal, n, str(e)[:80].replace("\n", " ")); bad.add(("bw", n)); continue
            off = apart(made, want)
            if not off < 1e-2: print("bw", size, causal, n, "OFF", off); continue
            calls[n] = lambda kw=kw: one.attention_backward(*args, **kw)
        qkv = [x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            o = torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=causal)
        gt = g.transpose(1, 2)
        calls["fa2"] = lambda: torch.autograd.grad(o, qkv, gt, retain_graph=True)
        show(f"bw {size} {'causal' if causal else 'full'}", each(calls, 20.0 if size == "T1024" else 40.0))
        if size == "T1024" and time.time() - begun < budget:
            parts = {}
            for name, kw in (("", dict(ORDER=0)), ("z ", dict(ZERO=1, ORDER=1))):
                steps, _ = one.launches(*args, **kw)
                if name: steps = steps[:1]
                for n, f in zip(("zero", "sums", "pass", "round"), steps): parts[name + n] = f
            for n, kw in (("sums32w4", dict(SM=32, SW=4)), ("sums64w4", dict(SW=4)), ("sums128w8", dict(SM=128)), ("sums128w16", dict(SM=128, SW=16))): parts[n] = one.launches(*args, **kw)[0][1]
            for n, kw in (("round64w4", dict(RW=4)), ("round32w2", dict(RM=32)), ("round128w8", dict(RM=128, RW=8)), ("round32w4", dict(RM=32, RW=4)), ("round128w4", dict(RM=128, RW=4))): parts[n] = one.launches(*args, **kw)[0][3]
            print("   parts", {n: round(u, 1) for n, u in each(parts, 5.0).items()}, flush=True)
    left = max(8.0, budget + 8 - (time.time() - begun))
    try:
        done = subprocess.run([sys.executable, os.path.abspath(__file__), "ws"], capture_output=True, text=True, timeout=min(25.0, left))
        print("ws", done.stdout.strip().replace("\n", " | ")[-700:], done.returncode, done.stderr.strip().splitlines()[-1:] if done.returncode else "")
    except subprocess.TimeoutExpired as e: print("ws: no end", (e.stdout or b"")[-300:])
    print("took", round(time.time() - begun, 1))
