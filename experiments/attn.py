"""Attention's backward at D = 128 with 80 queries a step, and what else was prepared, beside the kernel as it was: values, then times side by side.
PYTHONPATH=src python3 .gpu/attn.py; the variants are .gpu/NAME/v5_hopper_backward.cu, src has q80. Writes $OUT/attn.txt."""

import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from rooftile.core import timing
from rooftile.cuda.compile import compiled
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.cuda.tensor_map import TensorMap
from rooftile.ops._shared.launch import cdiv, resident
from rooftile.ops.attention import reference
from rooftile.ops.attention.cuda_kernels import KEYS, LOG2E, V5, dealt, shared_bytes

BEGUN = time.time()
HERE = Path(__file__).parent
OUT = Path(os.environ.get("OUT", "/tmp"))
lines = []


def say(text):
    print(text, flush=True)
    lines.append(text)
    (OUT / "attn.txt").write_text("\n".join(lines) + "\n")


def source(name):
    return V5 if name == "src" else Source(HERE / name / "v5_hopper_backward.cu")


VARIANTS = {  # name: source, queries a step
    "base": (source("base"), 64),
    "q80": (source("src"), 80),  # this branch
    "q80dv": (source("q80dv"), 80),  # dv queued before dS is computed, from P already rounded
    "q80late": (source("q80late"), 80),  # dS told of at the end of a step, as it was
    "early64": (source("early64"), 64),  # 64 queries, dS told of when the step before's dq is made
}


def instance(m, causal, dtype):
    return f"attention_backward<{CTYPE[dtype]}, 128, {str(causal).lower()}, false" + (", false, 80>" if m == 80 else ">")


def backward(name, dout, q, k, v, out, lse, causal, scale):
    """cuda_kernels._backward with the source and the queries of a step given; what comes before and after is src's for all."""
    walk_source, m = VARIANTS[name]
    (b, t, h, d), (s, g) = q.shape, k.shape[1:3]
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    walk, tiles = cdiv(t, m), cdiv(s, KEYS)
    blocks, all_tiles = walk * b * h, tiles * b * g
    sums = q.new_empty(blocks, 2, m * d // 2, dtype=torch.float32)
    turn = q.new_empty(blocks, 2, dtype=torch.int32)
    added = q.new_empty(1 + b * h, dtype=torch.int32)
    rows = q.new_empty(blocks, 2, m, dtype=torch.float32)
    kind, m80 = f"{CTYPE[q.dtype]}, {d}", m == 80
    launch(V5, f"prepare<{kind}{', 80' if m80 else ''}>", blocks * m * d // 2048, 256, sums, turn, added, rows, dout, out, lse, h, t, *dout.stride()[:3], *out.stride()[:3])
    maps = [TensorMap(x, (1, 64, 1, 64), 128) for x in (dk, dv)]
    maps += [TensorMap(x, (1, n, 1, 64), 128) for x, n in ((q, m), (k, KEYS), (v, KEYS), (dout, m))]
    together, back = dealt(causal, False, t, tiles)
    left = min(back, b * g) * (h // g) * walk
    launch(walk_source, instance(m, causal, q.dtype), min(all_tiles, resident(q, 1)), 384, *maps, dq, sums, turn, added, rows, g, h // g, t, s,
           walk, tiles, together, all_tiles, back * (h // g), *dq.stride()[:3], scale, scale * LOG2E, rows, rows, shared=shared_bytes(d, m))  # fmt: skip
    launch(V5, f"finish<{kind}{', false, 80' if m80 else ''}>", left * 2, m * d // 64, dq, sums, (blocks - left) * 2, h, t, *dq.stride()[:3], scale, rows, rows)
    return dq, dk, dv


def problem(b, t, h, causal, dtype=torch.bfloat16):
    gen = torch.Generator("cuda").manual_seed(t)
    q, k, v, dout = (torch.randn(b, t, h, 128, generator=gen, device="cuda", dtype=torch.float32).to(dtype) for _ in range(4))
    scale = 128**-0.5
    made = torch.ops.aten._scaled_dot_product_flash_attention(*(x.transpose(1, 2) for x in (q, k, v)), 0.0, causal, scale=scale)
    return dout, q, k, v, made[0].transpose(1, 2).contiguous(), made[1].float().contiguous(), causal, scale


def apart(made, wanted):
    """The largest difference of dq, dk and dv, as a share of the largest element or of one, in roundings to 16 bits; NaN comes out as NaN."""
    unit = torch.finfo(made[0].dtype).eps
    return [float((x.double() - w.double()).abs().max() / max(1.0, float(w.abs().max())) / unit) for x, w in zip(made, wanted)]


def precompile():
    jobs = [(s, instance(m, c, torch.bfloat16)) for s, m in VARIANTS.values() for c in (False, True)]
    jobs += [(V5, f"{n}<__nv_bfloat16, 128{x}>") for n, x in (("prepare", ""), ("prepare", ", 80"), ("finish", ""), ("finish", ", false, 80"))]

    def one(job):
        try:
            made = compiled(*job, "sm_90a")
            return f"{job[0].path.parent.name} {job[1]}: {made.registers} registers, {made.spill_bytes} spilled {made.loss}"
        except Exception as error:
            return f"{job[0].path.parent.name} {job[1]}: {error}"

    with ThreadPoolExecutor(8) as pool:
        for said in pool.map(one, jobs):
            if " 0 spilled " not in said or not said.endswith(" "):
                say(said)


def main():
    say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    precompile()
    say(f"compiled after {time.time() - BEGUN:.0f} s")
    alive = dict.fromkeys(VARIANTS, True)
    for b, t, h in ((1, 200, 2), (2, 1024, 4), (24, 400, 16)):  # the last: heads enough for earlier ones to be rounded by who comes after
        for causal in (False, True):
            call = problem(b, t, h, causal)
            wanted = reference.attention_backward(*(x.double() if isinstance(x, torch.Tensor) else x for x in call))
            for name in VARIANTS:
                if not alive[name]:
                    continue
                try:
                    far = apart(backward(name, *call), wanted)
                    torch.cuda.synchronize()
                    fine = all(x <= 2 for x in far)
                    alive[name] = fine
                    say(f"T={t} causal={causal} {name}: dq dk dv off by {' '.join(f'{x:.2f}' for x in far)} eps{'' if fine else ': WRONG'}")
                except Exception:
                    alive[name] = False
                    say(f"{name} at T={t} causal={causal}: {traceback.format_exc(limit=3)}")
            del call, wanted
    table = ["", f"{'':24}" + "".join(f"{n:>10}" for n in VARIANTS) + "     noise"]
    for b, t, h in ((4, 4096, 16), (1, 16384, 16), (16, 1024, 16)):
        for causal in (False, True):
            call = problem(b, t, h, causal)
            runs, base = {}, None
            for name in (n for n, ok in alive.items() if ok):
                try:
                    made = backward(name, *call)
                    torch.cuda.synchronize()
                    if base is None:
                        base = made
                    elif not all(x <= 2 for x in apart(made, base)):
                        say(f"{name} differs from base at T={t} causal={causal}: {apart(made, base)}")
                        continue
                    runs[name] = lambda name=name, call=call: backward(name, *call)
                except Exception:
                    say(f"{name} at T={t} causal={causal}: {traceback.format_exc(limit=3)}")
            del base
            if not runs:
                continue
            try:
                found = timing.compare(runs, torch.device("cuda"), budget_ms=300.0)
                first = next(iter(found.timings.values())).us
                row = f"B{b} H{h} T{t} {'causal' if causal else 'full'}"
                table.append(f"{row:24}" + "".join(f"{found.timings[n].us:10.1f}" if n in runs else f"{'-':>10}" for n in VARIANTS) + f"{100 * found.noise:9.2f}%")
                table.append(f"{'':24}" + "".join(f"{100 * (found.timings[n].us / first - 1):+9.2f}%" if n in runs else f"{'':>10}" for n in VARIANTS))
            except Exception:
                say(traceback.format_exc(limit=3))
            print(table[-2], table[-1], sep="\n", flush=True)
    say("\n".join(table))
    say(f"us, D=128 bfloat16, medians, cold L2, ABBA; {time.time() - BEGUN:.0f} s in all")


if __name__ == "__main__":
    sys.exit(main())
