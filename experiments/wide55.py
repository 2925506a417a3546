"""triton.widest (D = 256) by configs that need up to 227 KiB of shared memory, beside PyTorch's FlashAttention-2. Predicted: forward (128, 64, 8, 2) 1.35 times (128, 32, 8, 2)'s
330 TFLOP/s; gradient 1.5 times its 105. Compiled here for sm_90: forward (128, 64, 8, 2) and dq (64, 64, 8, 2), (128, 32, 8, 2) spill nothing; dkv (32, 64, 8, 2) 96 bytes."""
import importlib, multiprocessing as mp, torch
KINDS = (False, True)
FWD = [(128, 32, 8, 2), (128, 64, 8, 2), (128, 32, 8, 3), (128, 64, 8, 1)]
DQ = [(64, 32, 8, 2), (64, 64, 8, 2), (128, 32, 8, 2), (64, 32, 8, 3), (128, 64, 8, 1)]
DKV = [(16, 64, 8, 2), (32, 64, 8, 2), (32, 64, 8, 3), (64, 64, 8, 2), (64, 64, 8, 1)]
def setup(causal):
    import rooftile
    from rooftile.core.kernel import OPS
    mod = importlib.import_module("rooftile.ops.attention.triton_kernels")
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(4, 4096, 8, 256, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    out, lse = OPS["attention"](q, k, v, causal, 1 / 16)
    a = (g, q, k, v, out, lse, causal, 1 / 16)
    runs = {f"fwd {c}": (lambda c=c: mod.attention(q, k, v, causal, 1 / 16, config=mod.forward_tile(*c))) for c in FWD}
    runs |= {f"dq {c}": (lambda c=c: mod.attention_backward(*a, config=mod.backward_tiles(c, DKV[0]))) for c in DQ}
    runs |= {f"dkv {c}": (lambda c=c: mod.attention_backward(*a, config=mod.backward_tiles(DQ[0], c))) for c in DKV[1:]}
    return runs, a
def warm(job):
    causal, which = job
    try: setup(causal)[0][which](); torch.cuda.synchronize()
    except Exception as e: return (causal, which, type(e).__name__, str(e)[:120])
if __name__ == "__main__":
    names = [f"{w} {c}" for w, l in (("fwd", FWD), ("dq", DQ), ("dkv", DKV[1:])) for c in l]
    with mp.get_context("spawn").Pool(13) as pool:
        for x in pool.imap_unordered(warm, [(k, n) for n in names for k in KINDS]):
            if x: print(x, flush=True)
    from rooftile.core import timing
    for causal in KINDS:
        runs, a = setup(causal)
        for n in list(runs):
            try: runs[n](); torch.cuda.synchronize()
            except Exception as e: print(n, str(e)[:80]); del runs[n]
        qkv = [x.transpose(1, 2).detach().requires_grad_() for x in a[1:4]]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            o = torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=causal)
        gt = a[0].transpose(1, 2)
        runs["fa2 bwd"] = lambda: torch.autograd.grad(o, qkv, gt, retain_graph=True)
        def fa2():
            with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION): torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=causal)
        runs["fa2 fwd"] = fa2
        t = {n: x.us for n, x in timing.compare(runs, torch.device("cuda", 0), budget_ms=40.0, rounds=6).timings.items()}
        print(causal, {n: round(u, 1) for n, u in sorted(t.items(), key=lambda i: i[1])}, flush=True)
