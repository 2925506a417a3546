"""The lab's variants in the simulator, small; faults on every access."""
import sys, torch, lab
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile.workbench.check import poisoned
torch.manual_seed(0)
REF = OPS["embedding_backward"].spec.reference
TOK = {"few": lambda m, v: torch.randint(0, v, (m,)), "outside": lambda m, v: torch.randint(-2, v + 2, (m,)).where(torch.arange(m) % 9 > 0, 2**40)}
for m, v, n in ((700, 301, 24), (90, 1201, 8)):
    for what, make in TOK.items():
        indices, dout = make(m, v), torch.randint(-4, 5, (m, n)).float()
        want = REF(dout, indices, torch.zeros(v, n), -1)
        for table, added in ((lab.BACK, False), (lab.ADD, True), (lab.ADD2048, True)):
            for name, cfg in table.items():
                base = torch.randint(-4, 5, (v, n)).float() if added else torch.full((v, n), float("nan"))
                got = base.clone()
                try:
                    with simulator.active(sys.argv[1] if len(sys.argv) > 1 else "all"), poisoned(): lab.variant(got, dout, indices, lab.full(cfg), added)
                    ok = torch.equal(got, want + base if added else want)
                except Exception as e: ok = type(e).__name__ + " " + str(e)[:400]
                if ok is not True: print(m, v, n, what, name, added, ok, flush=True)
    print("done", m, v, n, flush=True)
