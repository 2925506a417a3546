import sys, time, torch, lab
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.workbench.check import poisoned
torch.manual_seed(0)
REF = OPS["embedding_backward"].spec.reference
level = sys.argv[1] if len(sys.argv) > 1 else "all"
TOK = {"few": lambda m, v: torch.randint(0, v, (m,)), "outside": lambda m, v: torch.randint(-2, v + 2, (m,)).where(torch.arange(m) % 9 > 0, 2**40),
       "two": lambda m, v: torch.randint(0, 2, (m,)) * (v - 1)}
cfgs = [("lists", 4, 8, None, "end"), ("cluster", 4, 8, None, "end"), ("cluster", 2, 8, 1, "end"), ("bulk", 4, 8, None, "end"), ("nothing", 4, 8, None, "end", 1), ("bulk", 4, 8, None, "end", 1)]
adds = [("cluster", 2, 8, None, "with", 1), ("nothing", 4, 16, None, "ask", 1), ("nothing", 2, 8, None, "with"), ("nothing", 4, 8, None, "ask"), ("cluster", 2, 8, None, "with"), ("cluster", 4, 8, 1, "end"), ("lists", 4, 8, None, "end")]
for m, v, n in ((700, 301, 24),):
    for what, make in TOK.items():
        indices, dout = make(m, v), torch.randint(-4, 5, (m, n)).float()
        want = REF(dout, indices, torch.zeros(v, n), -1)
        for cfg in cfgs + adds:
            added = cfg in adds
            base = torch.randint(-4, 5, (v, n)).float() if added else torch.full((v, n), float("nan"))
            got = base.clone()
            t = time.time()
            try:
                with simulator.active(level), poisoned():
                    lab.variant(got, dout, indices, cfg, added)
                ok = torch.equal(got, want + base if added else want)
            except Exception as e: ok = type(e).__name__ + " " + str(e)[:600]
            if ok is not True: print(m, v, n, what, cfg, added, ok, f"{time.time()-t:.1f}", flush=True)
    print("done", m, v, n, flush=True)
