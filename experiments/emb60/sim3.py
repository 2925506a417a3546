import torch, lab, time
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
torch.manual_seed(1)
m, v, n = 34000, 5000, 8
i, d = torch.randint(-1, v + 1, (m,)), torch.randint(-4, 5, (m, n)).float()
i[::2] = torch.where(torch.rand(17000) < 0.5, v // 3, i[::2])
want = OPS["embedding_backward"].spec.reference(d, i, torch.zeros(v, n), -1)
for cfg in (("bulk", 4, 8, None, "end", 8), ("cluster", 4, 8, 1, "end", 1), ("lists", 4, 8, None, "end", 8)):
    t = time.time(); got = torch.full((v, n), float("nan"))
    with simulator.active("checks"): lab.variant(got, d, i, cfg)
    print(cfg, torch.equal(got, want), f"{time.time() - t:.0f} s", flush=True)
