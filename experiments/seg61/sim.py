import sys, torch
from pathlib import Path
from rooftile.cuda import simulator
from rooftile.cuda.source import Source
from rooftile.ops.scan import cuda_kernels as C
what = sys.argv[1]
H = Path(".gpu/seg61").resolve()
torch.manual_seed(0)
if what.startswith("scan"):
    for n, dt, ex, rev, v in ((2120, torch.bfloat16, False, True, 8), (5000, torch.float32, True, False, 8), (5000, torch.int32, False, True, 4), (2120, torch.bfloat16, True, True, 4), (4104, torch.bfloat16, False, False, 2)):
        x = torch.randint(-5, 6, (2, n)).to(dt)
        out = []
        for src in (Path("src/rooftile/ops/scan/cuda/v5_pipeline.cu").resolve(), H / f"{what}.cu"):
            with simulator.active(seed=1):
                out.append(C._pipeline(Source(src), x, ex, rev, config={"vectors": v, "warps": 2, "stages": 3, "lead": 1, "per": 3}))
        print(what, n, dt, ex, rev, torch.equal(*out), flush=True)
