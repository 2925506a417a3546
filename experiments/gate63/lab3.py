"""Llama's step with gated walks: two rows at a time or one, groups of 16 rows of tiles or of 8 backward. Predicted: one row and 8: 0.3 to 0.6 of 222 ms."""
import statistics, sys, torch
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
import lab2
from rooftile.training import benchmark as b
from rooftile.ops.mlp import cuda_kernels as m
from rooftile.core.kernel import OPS
V = lab2.V
lab2.hp.launch = lab2.REAL
setup = b.LLAMA
config = setup.config(steps=300, lr=3e-4, min_lr=3e-4, warmup=0, clip=0.0)
tokens = b._tokens(setup.model.vocab_size)
base_v1, real_slope, real_gated = m.V1, m.gate_sloped, m.gated
field = {}
for name, source, group in (("base", "base", 16), ("t1", "t1", 16), ("t1 g8", "t1", 8), ("base g8", "base", 8)):
    def slope(g, w, pre, a, config, source=source, group=group):
        m.V1 = V[source]
        try: return real_slope(g, w, pre, a, {**config, "GROUP": group})
        finally: m.V1 = base_v1
    m.gate_sloped = slope
    for op in OPS.values(): op.forget()
    one = b._Contestant("rooftile", setup.model, config, tokens)
    one.run(b.WARMUP); field[name] = one
times = {n: [] for n in field}
names = list(field)
for r in range(4):
    for n in names[r % 4:] + names[:r % 4]:
        ms, loss = field[n].timed(8); times[n].append(ms)
for n in names: print(n, round(statistics.median(times[n]), 2), [round(x, 2) for x in times[n]], flush=True)
