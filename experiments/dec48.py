"""cuda.v2_fragments' variants and configs beside Triton's choice and a copy of the caches' bytes, under bench's clock. --dry compiles only."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from rooftile.core import timing
from rooftile.cuda import compile as compiler
from rooftile.cuda.source import Source
from rooftile.ops.attention_decode import fragments_kernels as f
from rooftile.ops.attention_decode import triton_kernels as tk
from rooftile.ops.attention_decode.api import _decode, _decode_e4m3

BASE = Path(f.V2.path).read_text()
TEXTS = {"base": BASE}
SOURCES = {}
for name, text in TEXTS.items():
    p = Path(f"/tmp/d48_{name}.cu")
    p.write_text(text)
    SOURCES[name] = Source(p)
C8, C16 = ((16, 3), (8, 3), (4, 3), (2, 3), (16, 2), (8, 2), (12, 4), (12, 2), (12, 3), (8, 4), (6, 2)), ((8, 3), (4, 3), (2, 3), (12, 2), (6, 2), (4, 2), (8, 2), (4, 4), (6, 4))


def jobs():
    for c, cs, size in (("unsigned char", C8, 1), ("__nv_bfloat16", C16, 2)):
        for paged in ("false", "true"):
            for w, s in cs:
                tile, resident = 2 * 16 * 128 * size, 16
                warps = min(w, resident, f.SHARED // (s * tile))
                per = min(resident // warps, f.SHARED // (warps * max(s * tile, 4 * 128 * 4)))
                yield SOURCES["base"], f"shares<__nv_bfloat16, {c}, __nv_bfloat16, 128, 1, {paged}, {s}, {warps}, {per}>"
    yield SOURCES["base"], "combine<__nv_bfloat16, __nv_bfloat16, 128>"


def made():
    import cuda.core
    from cuda.core import Program, ProgramOptions  # noqa: F401

    todo = list(dict.fromkeys(jobs()))
    with ThreadPoolExecutor(16) as pool:
        return list(zip(todo, pool.map(lambda a: compiler.compiled(a[0], a[1], "sm_90a"), todo)))


all_made = made()
if "--dry" in sys.argv:
    for (s, i), k in all_made:
        print(Path(s.path).name, i, k.registers, k.spill_bytes)
    raise SystemExit


def run(op, config, args):
    return op.kernel("cuda.v2_fragments").run(*args, config=config)


start = time.time()
for op in (_decode_e4m3, _decode):
    e = op is _decode_e4m3
    for case in op.spec.cases:
        if "bench" not in case.use or case.dims["T"] > 1 or case.id.startswith("host"):
            continue
        call = op.spec.draw(case, device="cuda")
        args = tuple(call.values())
        choice = op.kernel("triton")
        config = choice.pick(call)
        calls = {"triton": lambda: choice.run(*args, config=config)}
        for w, s in C8 if e else C16:
            calls[f"{w} x {s}"] = lambda c={"warps": w, "stages": s}: run(op, c, args)
        k = call["k_cache"]
        n = k.numel() * k.itemsize
        a, b = torch.empty(n, dtype=torch.uint8, device="cuda"), torch.empty(n, dtype=torch.uint8, device="cuda")
        calls["copy"] = lambda: b.copy_(a)
        want = [x.float() for x in calls["triton"]()]
        bad = {}
        for name, c in calls.items():
            if name not in ("copy",):
                got = c()
                bad[name] = " ".join(f"{(x.float() - y).abs().max().item():.1e}" for x, y in zip(got, want))
        found = timing.compare(calls, k.device, budget_ms=8.0, rounds=40)
        print(op.spec.name, case.id[:60])
        for name, t in sorted(found.timings.items(), key=lambda i: i[1].us):
            print(f"  {name:18s} {t.us:7.1f} us {found.timings['copy'].us / t.us:.3f}  {bad.get(name, '')}")
print(f"{time.time() - start:.0f} s")
