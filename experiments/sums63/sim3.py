import sys, torch
from pathlib import Path
from itertools import pairwise
from rooftile.cuda import simulator
from rooftile.cuda.launch import launch
from rooftile.cuda.source import Source
from rooftile.ops.segment_sum import runs_kernels as R
from rooftile.ops._shared.launch import cdiv
H = Path(__file__).resolve().parent
def new_launch(src, inst, grid, block, *a, **k):
    if inst.startswith("join") and SRC in ("v6_join","v6_both","v6_roll"):
        runs, e, n = a[-1], a[-3], a[-2]
        grid = (max(cdiv(runs, 64), cdiv(e, 512)), min(4, cdiv(n, 8 * int(inst.split()[-1][:-1]))))
    print(inst, grid)
    return launch(Source(H / f"{SRC}.cu"), inst, grid, block, *a, **k)
R.launch = new_launch
torch.manual_seed(0)
for SRC in sys.argv[1:]:
    for m, o in ((1 << 15, [0, 1 << 15]), (1 << 15, sorted([0, 1 << 15, *torch.randint(0, 1 << 15, (511,)).tolist()]))):
        o = torch.tensor(o); x = torch.randint(-9, 10, (m, 128)).float()
        want = torch.stack([x[a:b].sum(0) for a, b in pairwise(o.tolist())])
        for cfg in ({"rows": 8, "runs": 64, "cut": 2}, {"rows": 4, "runs": 32, "cut": 0}):
            with simulator.active():
                a, b = R.in_runs(x, o, config=cfg), R.in_runs(x.bfloat16(), o, config=cfg)
            print(SRC, len(o), cfg, torch.equal(a, want), torch.equal(b, want.bfloat16()), flush=True)
