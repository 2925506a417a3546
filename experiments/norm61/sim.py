import sys; sys.path.insert(0, ".gpu/norm61")
import torch, lab, make, mkpair
from pathlib import Path
make.write()
for h in (2,): (lab.H / f"v8_w{h}.cu").write_text(mkpair.weight_in_registers(Path("src/rooftile/ops/layernorm/cuda/v8_exchange.cu").read_text(), h))
lab.tools()
from rooftile.cuda import simulator
which, level = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
def sim(level): return simulator.active(level) if level else simulator.active()
if which == "v3":
    for case, m, n, cfg in (("L", 9, 1024, (64, 2, 64, 3, 1)), ("R", 9, 1024, (64, 2, 64, 3, 1)), ("F", 7, 768, (128, 2, 128, 2, 1)), ("S", 37, 512, (32, 2, 64, 2, 1)), ("N", 9, 1024, (64, 2, 64, 3, 1))):
        a = lab.made(case, m, n, "cpu")
        with sim(level): x = lab.run(case, ("head", cfg), a)
        for e in [*lab.EDITS, *(("pair", "pair_drawn") if case in "LRN" else ())]:
            with sim(level): y = lab.run(case, (e, cfg), a)
            print(case, e, [None if t is None or not t.numel() else torch.equal(t, u) for t, u in zip(x, y)], lab.off(case, y, x), flush=True)
else:
    for m, n in ((9, 8192), (5, 6200), (9, 7680)):
        a = lab.made("C", m, n, "cpu")
        c = (4, 4, 64, 3, 1)
        with sim(level): x = lab.run("C", ("v8", c), a)
        for e in ("v8_w1", "v8_w2"):
            with sim(level): y = lab.run("C", (e, c), a)
            print(m, n, e, [torch.equal(t, u) for t, u in zip(x, y)], lab.off("C", y, x), flush=True)
