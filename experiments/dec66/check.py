"""The variants in the simulator against today's kernel: the operator's cases that it takes, and windows, softcaps, sinks, lengths out of range, pages that do not exist, NaN keys and values. No GPU. usage: check.py lean k32 ..."""
import sys, time, torch
sys.argv, names = sys.argv[:1], sys.argv[1:] or ["h1", "lean", "k32"]
import importlib.util
from pathlib import Path
spec = importlib.util.spec_from_file_location("lab", Path(__file__).with_name("lab.py")); lab = importlib.util.module_from_spec(spec); spec.loader.exec_module(lab)
from rooftile.cuda import simulator
from rooftile.core.spec import Case
OP, began = lab.OP, time.time()
def compare(title, call, name):
    if name.startswith("k32") and call["block_table"] is not None and call["k_cache"].shape[1] % 32: return
    if name.startswith("two") and (call["q"].shape[1] * call["q"].shape[2] // call["k_cache"].shape[2] > 16 or call["k_cache"].stride(2) != 128 or call["k_cache"].shape[2] % 2 or call["v_cache"].stride(2) != 128): return
    out = []
    for n in ("main", name):
        with simulator.active("all"), torch.no_grad(): out.append(lab.run(n, {"warps": 4, "stages": 3}, {k: v.clone() if torch.is_tensor(v) and k != "block_table" and "cache" not in k else v for k, v in call.items()}))
    nans = all(torch.equal(a.isnan(), b.isnan()) for a, b in zip(*out))
    far = max(((a.float() - b.float()).nan_to_num(0, 0, 0).abs().max().item() if a.numel() else 0) for a, b in zip(*out))
    inf = all(torch.equal(a.isinf(), b.isinf()) for a, b in zip(*out))
    ok = nans and inf and far <= (1e-2 if lab.loose(name) else 0)
    print("ok   " if ok else "WRONG", name, title, f"far {far:.2g} nans {sum(int(a.isnan().sum()) for a in out[0])}", f"{time.time() - began:.0f} s", flush=True)
base = next(c for c in OP.spec.cases if "bench" in c.use and c.dims["T"] == 1 and c.dims["N"] > 1)
row = next(c for c in OP.spec.cases if "bench" in c.use and c.dims["T"] == 1 and c.dims["N"] == 1)
kernel = OP.kernel("cuda.v2_fragments")
def drawn(c, seed=0, **dims): return OP.spec.draw(Case({**c.dims, **dims}, c.dtype, c.params, c.use), seed, torch.device("cpu"))
P = dict(B=2, G=2, H=8, S=64, N=4, M=8)
R = dict(B=2, G=2, H=8, S=250, M=2)
for name in names:
    for t in (1, 2, 4, 8) if not name.startswith("h1") else (1,):
        for what, c, d in (("pages", base, P), ("row", row, R)):
            call = drawn(c, t, **d, T=t)
            L = call["lengths"]
            L.copy_(torch.tensor([d["S"] * d.get("N", 1) - 3, 100], dtype=L.dtype))
            compare(f"{what} T={t}", call, name)
            if t > 2: continue
            compare(f"{what} T={t} window", {**call, "window": 70}, name)
            compare(f"{what} T={t} softcap", {**call, "softcap": 5.0}, name)
            compare(f"{what} T={t} short", {**call, "lengths": torch.tensor([t, 0], dtype=L.dtype)}, name)
            compare(f"{what} T={t} out of range", {**call, "lengths": torch.tensor([10**6, 37], dtype=L.dtype)}, name)
            for cache in ("k_cache", "v_cache"):
                bad = call[cache].clone(); bad[-1, 5, 1, 7] = 0x7F; bad[0, 20, 0, 100] = 0xFF
                compare(f"{what} T={t} NaN in {cache}", {**call, cache: bad}, name)
            if what == "pages":
                table = call["block_table"].clone(); table[0, 1], table[1, 0] = 99, -5
                compare(f"pages T={t} no such", {**call, "block_table": table}, name)
    for c in OP.spec.cases:
        if "bench" in c.use or time.time() - began > 400: continue
        try: call = OP.spec.draw(c, 0, torch.device("cpu"))
        except Exception: continue
        if call["q"].dtype == torch.float32 or call["q"].shape[-1] != 128 or call["k_cache"].numel() > 1 << 20: continue
        why = kernel.refuse(call) if hasattr(kernel, "refuse") else None
        if why and "GPU" not in str(why) and "device" not in str(why): continue
        try: compare(c.id[:80], call, name)
        except Exception as e: print("?", name, c.id[:60], type(e).__name__, str(e)[:100])
