import sys; sys.path.insert(0, ".gpu/gemv62")
import torch, lab
lab.tools()
from rooftile.cuda import simulator
for kind, m, k, dtype, v in (("G", 203, 264, lab.F32, lab.GRADIENT), ("G", 203, 2120, lab.F16, lab.GRADIENT), ("G", 203, 40, lab.F32, lab.GRADIENT), ("G", 205, 40, lab.F16, lab.GRADIENT), ("G", 7, 8, lab.F16, lab.GRADIENT), ("F", 16, 16384, lab.BF, lab.FLAT), ("F", 37, 4000, lab.F32, lab.ROWS32), ("F", 37, 4096, lab.F16, lab.ROWS16), ("N", 6, 1, lab.BF, lab.NORMS), ("N", 6, 1, lab.F32, lab.NORMS)):
    v = [x for x in v if x[0] not in ("now", "triton")]; v.sort(key=lambda x: x[0] == "norm")
    with simulator.active(*sys.argv[1:]): lab.case(kind, m, k, dtype, v, 0, "cpu")
    print(kind, m, k, dtype, "done", len(v), flush=True)
