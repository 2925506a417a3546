"""Memory-bound operators: variants beside the kernel there is and a copy. PYTHONPATH=src python3 .gpu/mem.py; the table goes to $OUT/mem.txt."""
import os, pathlib, sys, time, traceback
import torch
import rooftile.ops  # noqa: F401
import rooftile.cuda.launch as cl
from rooftile.core import timing
from rooftile.core.kernel import OPS
from rooftile.cuda.launch import CTYPE
from rooftile.cuda.source import Source
from rooftile.ops._shared.launch import cdiv, rows as matrix_rows
from rooftile.ops._shared.rotary import dense
from rooftile.workbench.peers import copy_run

BEGAN, W = time.time(), torch.device("cuda", 0)
HERE = pathlib.Path(__file__).resolve().parent / "v"
LIMIT_S = float(os.environ.get("MEM_LIMIT_S", 85))
ONLY = sys.argv[1:]
real, instead = cl.launch, {}


def through(source, *args, **more):
    return real(instead.get(source.path.name, source), *args, **more)


for m in list(sys.modules.values()):
    if getattr(m, "__name__", "").startswith("rooftile.ops") and getattr(m, "launch", None) is real:
        m.launch = through
SOURCES = {}


def source(folder, name):
    return SOURCES.setdefault((folder, name), Source(HERE / folder / name))


def tensors(out):
    return [t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, torch.Tensor) and t.numel()]


def poison(out):
    """What the next results are allocated on is not the right answer of the run before."""
    held = [torch.empty_like(t) for t in tensors(out)]
    for t in held:
        t.view(torch.uint8).fill_(0xFF) if t.dim() else None
    torch.cuda.synchronize()


def apart(got, want):
    """0.0 where all bits agree, else the largest difference, of the largest number."""
    worst = 0.0
    for g, w in zip(tensors(got), tensors(want), strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype, (g.shape, w.shape, g.dtype, w.dtype)
        if torch.equal(g.contiguous().reshape(-1).view(torch.uint8), w.contiguous().reshape(-1).view(torch.uint8)):
            continue
        g, w = g.float(), w.float()
        assert torch.equal(g.isnan(), w.isnan()), "NaN in other places"
        worst = max(worst, float((g - w).nan_to_num().abs().max() / w.nan_to_num().abs().max().clamp_min(1e-30)))
    return worst


def drawn(op, case):
    o = OPS[op]
    found = [c for c in o.spec.cases if "bench" in c.use and all(part in c.id for part in case.split("|"))]
    assert found, [c.id for c in o.spec.cases if "bench" in c.use]
    return o, found[0], o.spec.draw(found[0], 0, W)


def variants(o, call, kernel, folders, every=True):
    """The kernel as it is and with other files in the place of its own, by its own config first and then by all."""
    k = o.kernel(kernel)
    assert k.objection(call) is None, k.objection(call)
    own, args, made = o.config(k, call), tuple(call.values()), {}
    configs = [own, *(c for c in k.configs if c != own)] if every else [own]
    for folder in (None, *folders):
        new = {p.name: source(folder, p.name) for p in (HERE / folder).glob("*.cu")} if folder else {}
        for c in configs if folder not in OWN else [own]:
            def run(new=new, c=c):
                instead.clear(), instead.update(new)
                return k.bound(c, save=False)(*args)
            made[f"{folder or 'as it is'} {' '.join(f'{n}={v}' for n, v in (c or {}).items())}".strip()] = run
    return made


TABLE = []
OWN = ("quant_hint", "quant_joint", "quant_lean_nohint")  # steps on the way, in the chosen config alone


def measure(op, case, made, call, o, tolerance=2**-7):
    want, good = None, {}
    for name, run in made.items():
        try:
            if want is not None:
                poison(want)
            got = run()
            torch.cuda.synchronize()
            if want is None:
                want = [t.clone() for t in tensors(got)]
                right = "the base"
            else:
                off = apart(got, want)
                assert off <= tolerance, f"it is off by {off:.3g}"
                right = "same bits" if off == 0 else f"off {off:.1e}"
            del got
            good[name] = (run, right)
        except Exception as error:  # one variant's fault is not the others'
            TABLE.append(f"{op} {case} {name}: FAILED {type(error).__name__}: {str(error)[:160]}")
            print(TABLE[-1], flush=True)
    instead.clear()
    versions = {n: r for n, (r, _) in good.items()} | {"copy": copy_run(o.spec.floor_bytes(call), W)}
    with torch.no_grad():
        t = timing.compare(versions, W, budget_ms=40.0, rounds=60)
    copy = t.timings["copy"].us
    TABLE.append(f"== {op} {case}: floor {o.spec.floor_bytes(call) / 1e6:.1f} MB, copy {copy:.2f} us, noise {t.noise:.4f}")
    first = next(iter(good))
    for n in sorted(good, key=lambda n: (n != first, t.timings[n].us)):
        x = t.timings[n]
        TABLE.append(f"   {op:26s} {x.p20:8.2f} {x.us:8.2f} {x.p80:8.2f} us {copy / x.us:6.3f} of a copy  {n}  [{good[n][1]}]")
    print("\n".join(TABLE[-len(good) - 1 :]), f"\n({time.time() - BEGAN:.0f} s)", flush=True)


# ---- launchers of the new rungs ------------------------------------------------------------------------------------------


def rope_bulk(q, k, cos, sin, positions, interleaved, each, threads, sign):
    q, k, cos, sin = dense(q), dense(k), dense(cos), dense(sin)
    (b, t, h, d), g, (s, n) = q.shape, k.shape[2], cos.shape
    assert q.stride(2) == d and k.stride(2) == d
    q_out, k_out = q.new_empty(q.shape), k.new_empty(k.shape)
    width = 16 // q.itemsize
    lanes = n // (width // 2 if interleaved else width)
    block = (lanes, max(1, min(h + g, threads // (lanes * each))), each)
    flags = f"{'false' if positions is None else 'true'}, {'true' if interleaved else 'false'}"
    given = positions is not None
    cl.launch(source("rope_bulk", "v4_bulk.cu"), f"rope<{CTYPE[q.dtype]}, {CTYPE[cos.dtype]}, {flags}>", cdiv(b * t, each), block, q_out, k_out, q, k,
              cos, sin, positions if given else q, b * t, t, s, h, g, d, n, *q.stride()[:2], *k.stride()[:2], *q_out.stride()[:2], *k_out.stride()[:2],
              cos.stride(0), sin.stride(0), *(positions.stride() if given else (0, 0)), sign, shared=each * (h + g) * d * q.itemsize)
    return q_out, k_out


def embedding_bulk(indices, weight, per):
    weight, v, n, stride = matrix_rows(weight)
    out, indices, m = weight.new_empty((*indices.shape, n)), indices.contiguous(), indices.numel()
    cl.launch(source("emb_bulk", "v6_bulk.cu"), f"gather<{CTYPE[weight.dtype]}, {per}>", cdiv(m, per), 32, out, indices, weight, m, v, n, stride,
              shared=per * n * weight.itemsize)
    return out


# ---- the items, the most important first ---------------------------------------------------------------------------------


def rope(op, case):
    o, c, call = drawn(op, case)
    made = variants(o, call, "cuda.v3_tokens", ["rope_hint"])
    args = list(call.values())  # (dq_out, dk_out) or (q, k), then the tables
    sign = -1.0 if op.endswith("backward") else 1.0
    for each in (1, 2, 4, 8):
        for threads in (64, 128, 256):
            if each * 10 <= threads:
                made[f"rope_bulk each={each} threads={threads}"] = lambda each=each, threads=threads: rope_bulk(*args[:6], each, threads, sign)
    measure(op, case, made, call, o)


def quantize(op, case):
    o, c, call = drawn(op, case)
    measure(op, case, variants(o, call, "cuda.v4_fused_rows", ["quant_hint", "quant_joint", "quant_lean", "quant_lean_nohint", "quant_all"]), call, o, 0.0)


def embedding(case):
    o, c, call = drawn("embedding", case)
    made = variants(o, call, "cuda.v1_warp_row", ["emb_hint"])
    for per in (1, 2, 4, 8):
        made[f"emb_bulk rows={per}"] = lambda per=per: embedding_bulk(call["indices"], call["weight"], per)
    measure("embedding", case, made, call, o, 0.0)


def plain(op, case, kernel, *folders):
    o, c, call = drawn(op, case)
    measure(op, case, variants(o, call, kernel, folders), call, o)


def inverses():
    """The inverse without its slow path is __fdiv_rn's, for every float that a scale can be."""
    bad = torch.zeros(1, dtype=torch.int64, device=W)
    real(source("inverse", "inverse.cu"), "differ", 132 * 16, 256, bad)
    TABLE.append(f"inverses that differ, of all scales: {int(bad)}")
    print(TABLE[-1], flush=True)


D80, BLOCKS, ROW = "B8_T4096_H16_G16_D80", "block_n=128", "block_n=0"
JOBS = [
    ("inverses", inverses, ()),
    ("rope", rope, ("rope", D80)), ("rope_backward", rope, ("rope_backward", D80)),
    ("quantize", quantize, ("rmsnorm_quantize", f"M16384_N4096|{BLOCKS}")), ("quantize", quantize, ("rmsnorm_quantize", f"M16384_N8192|{BLOCKS}")),
    ("quantize", quantize, ("rmsnorm_quantize", f"M16384_N4096|{ROW}")),
    ("embedding", embedding, ("M32768_V50304_N768|float32",)), ("embedding", embedding, ("M16384_V128256_N4096",)),
    ("cross_entropy", plain, ("cross_entropy_backward", "M32768_V256", "cuda.v4_vector", "ce_eager")),
    ("segment_sum", plain, ("segment_sum", "M67108864", "cuda.v4_numbers", "seg_last", "seg_first")),
    ("quantize", quantize, ("rmsnorm_quantize", f"M16384_N8192|{ROW}")), ("quantize", quantize, ("add_rmsnorm_quantize", f"M16384_N4096|{BLOCKS}")),
    ("rope", rope, ("rope", "H32_G8_D128|interleaved=False")), ("embedding", embedding, ("M32768_V50304_N768|bfloat16",)),
]
for name, job, args in JOBS:
    if ONLY and name not in ONLY:
        continue
    if time.time() - BEGAN > LIMIT_S - 5:
        TABLE.append(f"{name} {args}: left out, {time.time() - BEGAN:.0f} s have passed")
        continue
    try:
        job(*args)
    except Exception as error:
        traceback.print_exc()
        TABLE.append(f"{name} {args}: FAILED {type(error).__name__}: {str(error)[:200]}")
    torch.cuda.empty_cache()
text = "\n".join([torch.cuda.get_device_name(0), *TABLE, f"{time.time() - BEGAN:.0f} s in all"]) + "\n"
pathlib.Path(os.environ.get("OUT", "/tmp"), "mem.txt").write_text(text)
print("\n" + text)
