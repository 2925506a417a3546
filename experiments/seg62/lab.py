"""segment_sum of one number, gradient: v8_spread in short stretches, in the order of addresses, found by a search (now) or near where lengths that are alike would have it (near); forward v7 the same.
Predicted of 86 us: 4 tiles a warp near 72, 1 tile 74 (a search a tile). usage: lab.py"""
import torch
from pathlib import Path
H = Path(".gpu/seg62").resolve(); O = Path("src/rooftile/ops/segment_sum/cuda").resolve()
from rooftile.core import timing
from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from rooftile.core.kernel import OPS
import rooftile.ops
from rooftile.ops._shared.launch import cdiv, processors
S = {"now": Source(O / "v8_spread.cu"), "near": Source(H / "near.cu"), "v7": Source(O / "v7_warps.cu")}
C = {torch.float32: "float", torch.bfloat16: "__nv_bfloat16"}
def spread(s, block, tiles, dout, offsets, m):
    dx = dout.new_empty((m, 1))
    launch(S[s], f"spread<{C[dout.dtype]}, long long, {block}>", cdiv(cdiv(m, 1024), block // 32 * tiles), block, dx, dout, offsets, m, dout.shape[0], tiles)
    return dx
def numbers(block, per_sm, x, offsets):
    m, e = x.shape[0], offsets.numel() - 1
    out, every, warps, most = x.new_empty((e, 1)), cdiv(m, 1024), block // 32, per_sm * processors(x)
    tiles = max(1, cdiv(every, most))
    blocks = max(cdiv(every, tiles * warps), min(cdiv(e, block), cdiv(most, warps)))
    share = cdiv(e, blocks * warps)
    head, opened = x.new_empty(blocks, dtype=torch.float32), x.new_empty((blocks, 4), dtype=torch.int32)
    t = f"{C[x.dtype]}, long long"
    launch(S["v7"], f"chunks<{t}, {block}>", blocks, block, out, head, opened, x, offsets, m, e, tiles, share)
    launch(S["v7"], f"join<{t}>", cdiv(blocks, 128), 128, out, head, opened, offsets, m, e, blocks, share * warps)
    return out
torch.manual_seed(0)
m, e = 1 << 26, 1 << 20
cuts = torch.randint(0, m + 1, (e - 1,), device="cuda").sort().values
offsets = torch.cat([cuts.new_zeros(1), cuts, cuts.new_full((1,), m)])
for dt in (torch.float32, torch.bfloat16):
    dout, x = torch.randn(e, 1, device="cuda", dtype=dt), torch.randn(m, 1, device="cuda", dtype=dt)
    lengths = offsets.diff()
    want = dout.repeat_interleave(lengths, 0)
    half = (m * dt.itemsize + e * (8 + dt.itemsize)) // 2
    src, dst = (torch.empty(half, device="cuda", dtype=torch.uint8) for _ in range(2))
    calls = {"copy": lambda: dst.copy_(src), "zeros": lambda: x.new_empty((m, 1)).zero_(), "op": lambda: OPS["segment_sum_backward"].launch(dout, x, offsets)}
    for s in ("now", "near"):
        for block in (128, 256):
            for tiles in (1, 2, 3, 4, 6, 8, 16, 21):
                if not torch.equal(spread(s, block, tiles, dout, offsets, m), want): print("WRONG", s, block, tiles)
                calls[f"{s} {block},{tiles}"] = lambda s=s, b=block, t=tiles: spread(s, b, t, dout, offsets, m)
    t = {k: u.us for k, u in timing.compare(calls, torch.device("cuda", 0), budget_ms=60).timings.items()}
    print("BW", dt, "; ".join(f"{k} {u:.1f} ({t['copy']/u:.3f})" for k, u in sorted(t.items(), key=lambda i: i[1])))
    calls = {"copy": lambda: dst.copy_(src), "op": lambda: OPS["segment_sum"].launch(x, offsets), "sum": lambda: x.sum()}
    one = OPS["segment_sum"].launch(x, offsets)
    for block in (128, 256):
        for per in (16, 24, 48, 72, 96, 144, 192, 384):
            if not torch.allclose(numbers(block, per, x, offsets).float(), one.float(), atol=2e-2, rtol=2e-2): print("WRONG v7", block, per)
            calls[f"v7 {block},{per}"] = lambda b=block, p=per: numbers(b, p, x, offsets)
    t = {k: u.us for k, u in timing.compare(calls, torch.device("cuda", 0), budget_ms=60).timings.items()}
    print("FW", dt, "; ".join(f"{k} {u:.1f} ({t['copy']/u:.3f})" for k, u in sorted(t.items(), key=lambda i: i[1])))
