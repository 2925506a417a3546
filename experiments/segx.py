import torch, pathlib
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.cuda.source import Source
from rooftile.cuda.launch import launch, CTYPE
from rooftile.ops._shared.launch import cdiv, resident
import rooftile.ops.segment_sum.api
src = Source(pathlib.Path(".gpu/v6x.cu").resolve())
dev = torch.device("cuda"); op = OPS["segment_sum"]
for case in op.spec.cases:
    if "bench" not in case.use or "N128" not in case.id or "half" in case.id: continue
    x, off = op.spec.draw(case, 0, dev).values()
    m, n = x.shape; w = 16 // x.itemsize; lanes = n // w; e = off.numel() - 1
    out = torch.empty(e, n, device=dev, dtype=x.dtype); vs = {}
    for L in (512, 768, 1024):
        for mode in (0, 1, 2):
            chunk = 16 * max(1, cdiv(m * lanes, 16 * resident(x, L))); chunks = cdiv(m, chunk)
            part = torch.empty(2 * chunks, n, device=dev)
            def run(L=L, mode=mode, chunk=chunk, chunks=chunks, part=part):
                launch(src, f"chunks<{CTYPE[x.dtype]}, {CTYPE[off.dtype]}, {lanes}, 4, 3, {mode}>", cdiv(chunks, 256 // lanes), 256, out, part, x, off, m, e, n, n, 1, chunk, shared=16*256*12)
            run(); torch.cuda.synchronize(); vs[f"{L} mode {mode}"] = run
    half = x.view(-1)[: x.numel() // 2]; to = torch.empty_like(half); vs["copy"] = lambda: to.copy_(half)
    r = timing.compare(vs, dev, budget_ms=100)
    print(case.id, "noise %.3f" % r.noise, sorted((round(t.us, 1), n) for n, t in r.timings.items()), flush=True)
