"""The lab's gradients and forwards in the simulator, small."""
import sys, torch, lab
from rooftile.core.kernel import OPS
from rooftile.core.spec import Case
from rooftile.cuda import simulator
from rooftile.workbench.check import poisoned
which = sys.argv[1] if len(sys.argv) > 1 else "checks"
seen = set()
for c in ("N", "W", "F"):
    op, dims, params, versions = lab.CASES[c]
    for dtype in (torch.bfloat16, torch.float32):
        for m, n in ((37, 264), (150, 96)) if c != "F" else ((3, 264),):
            call = OPS[op].spec.draw(Case({"M": m, "N": n}, dtype, params if dtype != torch.float32 else {"scale": 0.5}), 0, "cpu")
            want = OPS[op].spec.reference(**call)
            for name, run in versions:
                if "none" in name and "ticket" not in name or "triton" in name: continue
                fn, args = run.func, list(run.args)
                if fn is lab.backward: args[1] = (16, min(4, args[1][1]), *args[1][2:4], 1, 1, args[1][6])
                if fn is lab.forward and args[0] == "fwd": args[1] = (args[1][0], 64)
                key = (fn.__name__, str(args), dtype, m)
                if key in seen: continue
                seen.add(key)
                if fn is lab.backward and args[0] == "bulk" and n % 16: continue
                try:
                    with simulator.active(which), poisoned(): got = fn(*args, **call)
                    wrong = lab.far(got, want)
                except Exception as e: wrong = f"{type(e).__name__} {str(e)[:300]}"
                if wrong: print(c, m, n, dtype, fn.__name__, args, "WRONG", wrong, flush=True)
    print("done", c, len(seen), flush=True)
