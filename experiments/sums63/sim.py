import itertools, sys, torch
from pathlib import Path
from itertools import pairwise
from rooftile.cuda import simulator
from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from rooftile.core.kernel import OPS
import rooftile.ops
from rooftile.ops.segment_sum import runs_kernels as R, warps_kernels as W
from rooftile.ops._shared.launch import cdiv
H = Path(__file__).resolve().parent
what = sys.argv[1:]
torch.manual_seed(0)
def new_launch(src, inst, grid, block, *a, **k):
    if inst.startswith("join") and SRC in ("v6_join","v6_both","v6_roll","v6_new"):
        runs, e, n = a[-1], a[-3], a[-2]
        grid = (max(cdiv(runs, 64), cdiv(e, 512)), min(4, cdiv(n, 8 * int(inst.split()[-1][:-1]))))
    return launch(Source(H / f"{SRC}.cu"), inst, grid, block, *a, **k)
R.launch = W.launch = new_launch
for SRC in what:
    if SRC.startswith("v6"):
        for lengths in ([1803, 0, 40, 3, 16, 5, 13, *[0] * 30, 7, 130, 0], [64] * 30, [1]*200, [3, 4100, 500, 0, 388], [17, 140 * 128, 5, 9]):
            for cols in (4, 35, 128, 256):
                if sum(lengths) > 9000 and cols > 128: continue
                o = torch.tensor([5, *lengths]).cumsum(0); x = torch.randint(-9, 10, (5 + sum(lengths) + 7, cols)).float()
                want = torch.stack([x[a:b].sum(0) for a, b in pairwise(o.tolist())])
                for cfg in ({"rows": 4, "runs": 4096, "cut": 0}, {"rows": 8, "runs": 10, "cut": 2}):
                    with simulator.active():
                        a, b = R.in_runs(x, o, config=cfg), R.in_runs(x.bfloat16(), o.int(), config=cfg)
                    print(SRC, len(lengths), cols, cfg, torch.equal(a, want), torch.equal(b, want.bfloat16()), flush=True)
    elif SRC.startswith("v7"):
        for o in ([0, 12289], [0, 7, 7, 7, 500, 1024, 2048, 2048, 12289], sorted(torch.randint(0, 12289, (900,)).tolist()), [0]*200 + [5000]*300 + [12289]):
            o = torch.tensor(o); x = torch.randint(-9, 10, (12289, 1)).float()
            want = torch.stack([x[a:b].sum(0) for a, b in pairwise(o.tolist())])
            with simulator.active():
                a, b = W.by_warps(x, o, config={"block": 128, "per_sm": 8}), W.by_warps(x.bfloat16(), o.int(), config={"block": 128, "per_sm": 8})
            print(SRC, len(o), torch.equal(a, want), torch.equal(b, want.bfloat16()), flush=True)
    else:
        for m, k, each, share in ((5, 8 * 300 + 3, 2, 200), (3, 8 * 64, 1, 64), (128, 8 * 40, 1, 16), (1, 8 * 40, 1, 16), (2, 8 * 40, 1, 40)):
            a, x = torch.randint(-3, 4, (m, cdiv(k, 8) * 8)).bfloat16()[:, :k], torch.randint(-3, 4, (k,)).bfloat16()
            blocks = cdiv(k // 8, share); part, out = torch.full((m, blocks), float("nan")), a.new_empty(m)
            with simulator.active():
                launch(Source(H / f"{SRC}.cu"), f"slices<__nv_bfloat16, 128, {each}, 1>", blocks, 128, part, a, x, m, k, a.stride(0), share, shared=128*each*16 if SRC == "kept2" else 0)
                launch(Source(H / f"{SRC}.cu"), "join<__nv_bfloat16>", m, 128, out, part, blocks)
            print("kept", m, k, torch.equal(out, (a.double() @ x.double()).bfloat16()))
