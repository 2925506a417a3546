import sys; sys.path.insert(0, ".gpu/norm60")
from pathlib import Path
import torch, lab
(lab.H / "v8_stwb.cu").write_text(Path("src/rooftile/ops/layernorm/cuda/v8_exchange.cu").read_text().replace("__stcs(", "__stwb("))
lab.tools()
from rooftile.cuda import simulator
import sys
level = sys.argv[1] if len(sys.argv) > 1 else "all"
for case, m, n, cfgs in (("A", 37, 256, [(32, 1, 64, 3, 1)]), ("A", 37, 1024, [(32, 4, 256, 2, 1), (32, 4, 128, 3, 1), (32, 4, 96, 3, 1)]), ("A", 11, 1024, [(64, 2, 64, 3, 1), (128, 1, 128, 2, 1)]), ("A", 37, 200, [(32, 1, 64, 3, 1)]), ("B", 9, 1024, [(64, 2, 64, 4, 1), (128, 1, 128, 3, 1)])):
    a = lab.made(case, m, n, "cpu")
    for c in [c for c in cfgs if c[0] == 32]:
        with simulator.active(level): x, y = lab.run(case, ("v3", c), a), lab.run(case, ("spread", c), a)
        print("spread", case, m, n, c, [torch.equal(t, u) for t, u in zip(x, y)], lab.off(case, y, x), flush=True)
    for c in cfgs:
        with simulator.active(level): x, y = lab.run(case, ("v3", c), a), lab.run(case, ("bulk", c), a)
        print(case, m, n, c, [None if t is None or not t.numel() else torch.equal(t, u) for t, u in zip(x, y)], lab.off(case, y, x), flush=True)
