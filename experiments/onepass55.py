"""triton.one_pass by every config, its dq by atomics or by TMA's reduce, beside the kernels without atomics and PyTorch's FlashAttention-2, at B = 4, T = 4096.
Predicted for D = 128, full: atomics 3.3 to 3.5 ms, TMA 3.0 to 3.3 (triton.wide 4.28, FlashAttention-2 4.61)."""
import sys, importlib, multiprocessing as mp, os, torch
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
names = ("dout", "q", "k", "v", "out", "lse", "causal", "scale")
KINDS = [(128, 16, c) for c in (False, True)]
ONE = [(64, 128, 8, 2), (32, 128, 8, 2), (64, 128, 8, 1)]
TMA = [(64, 128, 8, 2), (64, 128, 8, 3), (64, 128, 8, 1), (64, 64, 8, 2), (64, 64, 4, 2)]
def setup():
    import rooftile
    from rooftile.core.kernel import OPS
    import onepass_lab
    runs = {str(tuple(c.values())): (lambda *a, c=c: onepass_lab.attention_backward(*a, config=c)) for c in onepass_lab.CONFIGS}
    return OPS["attention"], runs
def inputs(op, d, h, causal):
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(4, 4096, h, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    out, lse = op(q, k, v, causal, d ** -.5)
    return (g, q, k, v, out, lse, causal, d ** -.5)
def warm(job):
    kind, which = job
    op, runs = setup(); args = inputs(op, *kind)
    try: runs[which](*args); torch.cuda.synchronize(); return None
    except Exception as e: return (kind, which, type(e).__name__, str(e)[:150])
if __name__ == "__main__":
    op, runs = setup()
    with mp.get_context("spawn").Pool(12) as pool:
        for x in pool.imap_unordered(warm, [(k, w) for w in runs for k in KINDS]):
            if x: print(x, flush=True)
    from rooftile.core import timing
    back = op.backward
    for d, h, causal in KINDS:
        args = inputs(op, d, h, causal); call = dict(zip(names, args))
        two = back.kernel("triton.wide")
        v5 = back.kernel("cuda.v5_hopper")
        all_ = {"two": two.bound(two.heuristic(call)), "v5": v5.bound(v5.heuristic(call)), **runs}
        want = all_["two"](*args)
        good = {}
        for n, f in list(all_.items()):
            try: made = f(*args); torch.cuda.synchronize()
            except Exception as e: print(n, type(e).__name__, str(e)[:80]); del all_[n]; continue
            good[n] = round(max(((a.float() - b.float()).abs().max() / b.float().abs().max()).item() for a, b in zip(made, want)), 4)
        calls = {n: (lambda f=f: f(*args)) for n, f in all_.items()}
        qkv = [x.transpose(1, 2).detach().requires_grad_() for x in args[1:4]]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            o = torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=causal)
        gt = args[0].transpose(1, 2)
        calls["fa2"] = lambda: torch.autograd.grad(o, qkv, gt, retain_graph=True)
        t = {n: x.us for n, x in timing.compare(calls, torch.device("cuda", 0), budget_ms=40.0, rounds=8).timings.items()}
        fl = 10 * 4 * h * 4096 * 4096 * d / (2 if causal else 1)
        print(d, causal, {n: (round(u, 1), round(fl / u / 1e6)) for n, u in sorted(t.items(), key=lambda i: i[1])}, "apart", good, flush=True)
