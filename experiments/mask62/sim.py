import sys, torch, pathlib
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import lab
lab.tools()
from rooftile.cuda import simulator
which = sys.argv[1:] 
def active(): return simulator.active()
if "m" in which:
    for shape in ((2, 1, 37, 64, True, 1, "bool"), (2, 2, 9, 48, False, 2, "bool"), (1, 2, 40, 16, True, 1, "bool"), (2, 1, 21, 40, True, 2, "bfloat16"), (2, 1, 5, 12, True, 1, "float32")):
        call = lab.mask_call(shape, "cpu")
        want = lab.OPS["attention_mask"].spec.reference(*call)
        for n in (("rows", (4, 0, 4, 0)), ("rows", (8, 1, 256, 1)), ("bulk", (16, 4, 32)), ("bulk", (8, 2, 4096)), ("bulk", (64, 8, 48 if shape[3]*want.itemsize % 48 == 0 else 16))):
            with simulator.active(): got = lab.mask(n, *call)
            print(shape, lab.label(n), "ok" if torch.equal(got, want) else f"WRONG {(got != want).nonzero()[:4].tolist()}", flush=True)
if "c" in which:
    for shape in ((2, 5, 4, 32, 16, 20, 0), (2, 5, 4, 48, 16, 16, 3), (2, 5, 3, 32, 0, 20, 0), (2, 20, 3, 32, 16, 16, 3), (2, 7, 3, 32, 16, 20, 0, 1), (2, 7, 3, 32, 0, 20, 0, 1)):
        call = lab.concat_call(shape, "cpu")
        want = [x.clone() for x in call[:2]]
        lab.OPS["concat_kv"].spec.reference(*want, *call[2:])
        full = 2 * shape[4] == shape[3]
        for n in (("tokens", (1, 2, 0, 0)), ("tokens", (2, 1, 1, 0)), *((("bulk", (2, 2, 0)), ("bulk", (1, 3, 1))) if shape[4] else (("moved", (4, 0)), ("moved", (1, 1))))):
            got = [x.clone() for x in call[:2]]
            try:
                with simulator.active(): lab.concat(n, *got, *call[2:])
                far = max(float((x.float() - y.float()).abs().max()) for x, y in zip(got, want))
                print(shape, lab.label(n), "ok" if far < 0.04 and torch.equal(got[1], want[1]) else f"WRONG {far}", flush=True)
            except Exception as e: print(shape, lab.label(n), type(e).__name__, str(e)[:600], flush=True)
