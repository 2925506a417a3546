"""mask62: attention_mask by a row's bound (mask.cu), concat_kv by tokens (concat.cu). usage: PYTHONPATH=src python3 .gpu/mask62/lab.py [SECONDS]
Floors. Mask, bool B8 4096^2: 134 MB written at 4.2 TB/s are 32 us; 8.4 M vectors at 19 instructions are 262 k warps' 5.0 M, over 528 schedulers 5.4 us: bytes decide
(today: a comparison, a conversion and a byte's permutation an element, some 3 x 134 M / 32 = 12.6 M and addresses). concat: 134 MB of keys and values in and out, 4 MB of
tables; arithmetic nothing; today a token's length is waited for before its 16 bytes are asked for, and its row of tables behind it: three latencies of one load a thread.
Predicted, of a copy: mask bool rows 8/16 1.00 to 1.05 (only written, nothing read), streaming stores the same, bulk 1.02, persistent 1.0; bf16 1.00 all; bulk ahead by 1 %.
concat turned: triton own 0.91, two tokens 0.92; tokens 0.95, with reads that leave last 0.97; bulk 0.97, leaving last 0.98. Not turned: moved 0.98, tokens 0.96.
Small ones: decode (64 tokens) bulk loses by 0.5 us, tokens as triton.
names: rows ROWS/how (0 wb, 1 cs, 2 cg)/lanes/blocks a multiprocessor (0: a tile a block); bulk rows a block/warps/bytes a row. tokens heads a thread/tokens/from (0, 1 last,
2 first)/to; bulk tokens/heads/from; moved tokens/from; triton tokens/heads/warps."""
import multiprocessing, sys, time
from pathlib import Path
import torch
H = Path(__file__).resolve().parent
BEGAN = time.time()
def tools():
    global timing, launch, CTYPE, compiler, MASK, CONCAT, cdiv, power_of_2, processors, TM, TC, OPS, dense
    from rooftile.core import timing
    from rooftile.core.kernel import OPS
    from rooftile.cuda import compile as compiler
    from rooftile.cuda.launch import CTYPE, launch
    from rooftile.cuda.source import Source
    from rooftile.ops._shared.launch import cdiv, power_of_2, processors
    from rooftile.ops.attention_mask import triton_kernels as TM, cuda_kernels as _, api as _
    from rooftile.ops.concat_kv import triton_kernels as TC, cuda_kernels as _, api as _
    MASK, CONCAT = Source(H / "mask.cu"), Source(H / "concat.cu")
def said(x): return "true" if x else "false"
def mask(name, lengths, queries, keys, causal, repeats, to):
    kind, cfg = name
    if kind == "triton": return TM.attention_mask(lengths, queries, keys, causal, repeats, to)
    if kind == "v2": return OPS["attention_mask"].kernel("cuda.v2_vector").run(lengths, queries, keys, causal, repeats, to)
    b, g = lengths.shape
    dtype = getattr(torch, to)
    out = lengths.new_empty((b, g * repeats, queries, keys), dtype=dtype)
    i, bh = mask_instance(name, to, causal, lengths.dtype), b * g * repeats
    if kind == "rows":
        rows, _, most, per = cfg
        lanes = min(most, power_of_2(keys * dtype.itemsize // 16))
        down = 256 // lanes or 1
        tiles = cdiv(queries, down * rows)
        blocks = min(bh * tiles, per * processors(lengths)) if per else bh * tiles
        launch(MASK, i, blocks, (lanes, down), out, lengths, bh * tiles, tiles, queries, keys, g, repeats, *lengths.stride())
    else:
        each, warps, most = cfg
        chunk = min(most, keys * dtype.itemsize)
        chunks, tiles = cdiv(keys * dtype.itemsize, chunk), cdiv(queries, each)
        launch(MASK, i, bh * tiles * chunks, (32, warps), out, lengths, chunks, tiles, each, chunk, queries, keys, g, repeats, *lengths.stride(), shared=warps * chunk)
    return out
def mask_instance(name, to, causal, length):
    kind, cfg = name
    t = f"{kind}<{'unsigned char' if to == 'bool' else CTYPE[getattr(torch, to)]}, {CTYPE[length]}, {said(causal)}"
    return f"{t}, {cfg[0]}, {cfg[1]}>" if kind == "rows" else f"{t}>"
def concat(name, kc, vc, k, v, lengths, cos, sin, interleaved=False, table=None):
    kind, cfg = name
    if kind == "triton":
        c = dict(zip(("tokens", "heads", "warps"), cfg)) if cfg else TC.pick({"k": k})
        return TC.concat_kv(kc, vc, k, v, lengths, cos, sin, interleaved, table, config=c)
    if kind == "v2": return OPS["concat_kv"].kernel("cuda.v2_vector").run(kc, vc, k, v, lengths, cos, sin, interleaved, table, config={"each": 4})
    turned, (b, t, g, d) = cos is not None, k.shape
    pieces = 1 if all(x.stride(2) == d for x in (k, v, kc, vc)) else g
    i = concat_instance(name, k.dtype, cos, lengths.dtype, interleaved, table)
    cos, sin = (cos, sin) if turned else (k[0, 0], k[0, 0])
    n, width, page, shared, s = cos.shape[1] if turned else 0, 16 // k.itemsize, kc.shape[1], 0, kc.shape[1]
    if table is not None: s = table.shape[1] * page
    turning = n // (width // 2 if interleaved else width)
    if kind == "tokens":
        each, z, *_ = cfg
        block = (turning + (d - 2 * n) // width, cdiv(g, each), z)
    elif kind == "bulk":
        z, down, *_ = cfg
        block, shared = (turning, down, z), 2 * z * g * d * k.itemsize
    else:
        z = cfg[0]
        block, shared = (z * pieces, 1, 1), 2 * z * g * d * k.itemsize
    given = lengths if table is None else table
    launch(CONCAT, i, cdiv(b * t, z), block, kc, vc, k, v, lengths, cos, sin, given, b * t, t, s, g, d, n, cos.shape[0] if turned else 0, len(kc), page,
           *(() if kind == "tokens" else (pieces,)), *k.stride()[:3], *v.stride()[:3], *kc.stride()[:3], *vc.stride()[:3], lengths.stride(0), cos.stride(0), sin.stride(0), given.stride(0), given.stride(-1), shared=shared)
def concat_instance(name, dtype, cos, length, interleaved=False, table=None):
    kind, cfg = name
    t = f"{kind}<{CTYPE[dtype]}, {CTYPE[dtype if cos is None else cos.dtype]}, {CTYPE[length]}, {said(interleaved)}, {said(table is not None)}"
    return f"{t}, {cfg[0]}, {cfg[2]}, {cfg[3]}>" if kind == "tokens" else f"{t}, {cfg[-1]}>"
def label(name): return name[0] + (" " + "/".join(map(str, name[1])) if name[1] else "")

R = [("rows", c) for c in ((2, 0, 256, 0), (4, 0, 256, 0), (8, 0, 256, 0), (16, 0, 256, 0), (4, 1, 256, 0), (8, 1, 256, 0), (16, 1, 256, 0), (8, 2, 256, 0), (8, 0, 128, 0), (8, 0, 64, 0),
                           (8, 0, 32, 0), (8, 0, 512, 0), (8, 0, 256, 8), (16, 0, 256, 8), (8, 1, 256, 8), (4, 0, 256, 8))]
BULK = [("bulk", c) for c in ((64, 8, 4096), (128, 8, 4096), (32, 8, 4096), (64, 4, 4096), (32, 4, 4096), (64, 16, 4096), (64, 8, 2048), (64, 8, 8192), (16, 8, 4096), (16, 4, 8192))]
FEW = [("rows", (4, 0, 256, 0)), ("rows", (8, 0, 256, 0)), ("rows", (16, 0, 256, 0)), ("rows", (8, 1, 256, 0)), ("rows", (2, 0, 256, 0)), ("rows", (1, 0, 256, 0)), ("bulk", (64, 8, 4096)), ("bulk", (32, 4, 4096))]
T = [("triton", ())]
# name: (B, G, queries, keys, causal, repeats, to), variants
MASKS = {
    "bench bool": ((8, 1, 4096, 4096, True, 1, "bool"), [*T, ("v2", ()), *R, *BULK]), "bench bf16": ((2, 8, 2048, 4096, True, 4, "bfloat16"), [*T, *R, *BULK]),
    "not causal": ((8, 1, 4096, 4096, False, 1, "bool"), [*T, *FEW]), "fp32": ((4, 1, 4096, 2048, True, 1, "float32"), [*T, *FEW]),
    "1024": ((32, 1, 1024, 1024, True, 1, "bool"), [*T, *FEW]), "4112": ((8, 1, 2048, 4112, True, 1, "bool"), [*T, *FEW]), "64": ((2048, 1, 64, 64, True, 1, "bool"), [*T, *FEW]),
    "512 small": ((4, 1, 512, 512, True, 1, "bool"), [*T, *FEW]), "decode": ((64, 1, 1, 4096, False, 1, "bool"), [*T, *FEW]),
}
TRITON = [("triton", c) for c in ((2, 8, 4), (2, 8, 8), (4, 8, 4), (4, 8, 8), (1, 8, 2), (8, 8, 8))]
TOKENS = [("tokens", c) for c in ((1, 1, 0, 0), (1, 2, 0, 0), (1, 4, 0, 0), (2, 2, 0, 0), (2, 4, 0, 0), (1, 2, 1, 0), (1, 4, 1, 0), (2, 2, 1, 0), (2, 4, 1, 0), (1, 4, 0, 1), (1, 4, 1, 1), (1, 4, 2, 0))]
BULKS = [("bulk", c) for c in ((1, 4, 0), (1, 8, 0), (2, 4, 0), (2, 8, 0), (4, 4, 0), (4, 8, 0), (1, 4, 1), (1, 8, 1), (2, 4, 1), (2, 8, 1), (4, 4, 1), (4, 8, 1))]
MOVED = [("moved", c) for c in ((1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (1, 1), (2, 1), (4, 1), (8, 1), (16, 1))]
SOME = [("tokens", (1, 1, 0, 0)), ("tokens", (1, 2, 0, 0)), ("tokens", (1, 4, 0, 0)), ("tokens", (1, 4, 1, 0)), ("bulk", (1, 8, 0)), ("bulk", (2, 4, 0)), ("bulk", (2, 8, 0)), ("bulk", (2, 8, 1))]
V2 = [("v2", ())]
# B, T, G, D, N, S, pages a sequence (0: contiguous), interleaved
CONCATS = {
    "prompt": ((4, 4096, 8, 128, 64, 8192, 0), [*T, *V2, *TRITON, *TOKENS, *BULKS]), "prompt, copied": ((4, 4096, 8, 128, 0, 8192, 0), [*T, *V2, *TRITON, *TOKENS, *MOVED]),
    "prompt, twice": ((8, 4096, 8, 128, 64, 8192, 0), [*T, *SOME]), "pages 4x512": ((4, 512, 8, 128, 64, 64, 32), [*T, *V2, *SOME]), "pages 64x1": ((64, 1, 8, 128, 64, 64, 32), [*T, *SOME]),
    "decode": ((64, 1, 8, 128, 64, 2048, 0), [*T, *SOME]), "prompt BHTD": ((4, 4096, 8, 128, 64, 8192, 0, 1), [*T, *V2, *SOME, *BULKS[1:6]]),
    "prompt BHTD, copied": ((4, 4096, 8, 128, 0, 8192, 0, 1), [*T, *V2, *SOME[:4], *MOVED[:3]]),
}
def mask_call(shape, device):
    b, g, queries, keys, causal, repeats, to = shape
    torch.manual_seed(0)
    lengths = torch.randint(0, keys + 1, (b, g)); lengths[0, 0] = keys
    return lengths.to(device), queries, keys, causal, repeats, to
def concat_call(shape, device, dtype=torch.bfloat16):
    b, t, g, d, n, s, pages, *bhtd = shape
    torch.manual_seed(0)
    held, room = (b * pages, s * pages) if pages else (b, s)
    caches = [torch.randn(held, s, g, d, device=device).to(dtype) for _ in range(2)]
    new = [torch.randn(b, t, g, d, device=device).to(dtype) for _ in range(2)]
    if bhtd: caches, new = ([x.transpose(1, 2).contiguous().transpose(1, 2) for x in y] for y in (caches, new))
    lengths = torch.randint(0, room - t + 1, (b,)); lengths[0] = room - t
    angles = torch.randn(room, max(n, 1), device=device)
    table = torch.randperm(held)[: b * pages].view(b, pages).to(device, torch.int32) if pages else None
    return *caches, *new, lengths.to(device), *((angles.cos(), angles.sin()) if n else (None, None)), False, table
def instances():
    out = []
    for (_, _, _, _, causal, _, to), names in MASKS.values(): out += [(MASK, mask_instance(n, to, causal, torch.int64)) for n in names if n[0] in ("rows", "bulk")]
    for (_, _, _, _, n, _, pages, *_), names in CONCATS.values():
        cos = torch.empty(0) if n else None
        out += [(CONCAT, concat_instance(x, torch.bfloat16, cos, torch.int64, False, True if pages else None)) for x in names if x[0] in ("tokens", "bulk", "moved")]
    return list(dict.fromkeys(out))
def jobs():
    tritons = [("c", c, n) for c, (_, names) in CONCATS.items() for n in names if n[0] == "triton"] + [("m", c, T[0]) for c in MASKS]
    return [("i", s.path.name, i) for s, i in instances()] + tritons
def warm(some):
    tools()
    out = []
    for kind, a, b in some:
        try:
            if kind == "i":
                made = compiler.compiled(MASK if a == "mask.cu" else CONCAT, b, "sm_90a")
                if made.spill_bytes: out.append(f"{b} spills {made.spill_bytes}")
            elif kind == "m": mask(b, *mask_call(MASKS[a][0], "cuda"))
            else: concat(b, *concat_call(CONCATS[a][0], "cuda"))
        except Exception as e: out.append(f"{kind} {a} {b} {type(e).__name__} {str(e)[:120]}")
    return out
def show(head, timings, noise):
    cp = timings["copy"].us
    line = f"== {head}: copy {cp:.1f} noise {noise:.3f} after {time.time() - BEGAN:.0f} s |"
    for k, t in sorted(timings.items(), key=lambda i: i[1].us):
        part = f" {k} {t.us:.1f} ({cp / t.us:.3f});"
        if len(line) + len(part) > 195: print(line, flush=True); line = "  "
        line += part
    print(line, flush=True)
def of(kind, case, shape, names, where, budget, rounds):
    op = OPS["attention_mask" if kind == "m" else "concat_kv"]
    runs, call = {}, (mask_call if kind == "m" else concat_call)(shape, "cuda")
    if kind == "m":
        want = op.spec.reference(*call) if shape[6] == "bool" else mask(T[0], *call)
        bytes_ = want.numel() * want.itemsize
    else:
        op_call = dict(zip(op.spec.signature.parameters, call))
        bytes_ = op.spec.floor_bytes(op_call) if hasattr(op.spec, "floor_bytes") else op.spec.moved(op_call, ())
        before, want = ([x.clone() for x in call[:2]] for _ in range(2)); concat(T[0], *want, *call[2:])
    for n in names:
        try:
            if kind == "m":
                got = mask(n, *call); torch.cuda.synchronize()
                if not torch.equal(got, want): print("WRONG", case, label(n), int((got != want).sum()), flush=True)
                del got
                runs[label(n)] = lambda n=n: mask(n, *call)
            else:
                for x, y in zip(call[:2], before): x.copy_(y)
                concat(n, *call); torch.cuda.synchronize()
                far = max(float((x.float() - y.float()).abs().max()) for x, y in zip(call[:2], want))
                if not far < 0.04 or not torch.equal(call[1], want[1]): print("WRONG", case, label(n), far, flush=True)
                runs[label(n)] = lambda n=n: concat(n, *call)
        except Exception as e: print("WRONG", case, label(n), type(e).__name__, str(e)[:120], flush=True)
    s = torch.empty(max(1, bytes_ // 2), dtype=torch.uint8, device=where).random_(); d = torch.empty_like(s)
    runs["copy"] = lambda: d.copy_(s)
    if kind == "m":
        z = torch.empty(bytes_, dtype=torch.uint8, device=where)
        runs["zeros"] = lambda: z.zero_()
    c = timing.compare(runs, where, budget_ms=budget, rounds=rounds)
    show(f"{'mask' if kind == 'm' else 'concat'} {case}", c.timings, c.noise)
def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 45
    todo = jobs()
    with multiprocessing.get_context("spawn").Pool(12) as pool:
        got = [pool.apply_async(warm, (todo[i::12],)) for i in range(12)]
        for g in got:
            try:
                for line in g.get(timeout=max(1, 22 - (time.time() - BEGAN))): print("WRONG", line, flush=True)
            except Exception as e: print("warm", type(e).__name__, str(e)[:100], flush=True)
        pool.terminate()
    print(f"warm after {time.time() - BEGAN:.0f} s", flush=True)
    where = torch.device("cuda", 0)
    order = [("m", "bench bool"), ("c", "prompt"), ("c", "prompt, copied"), ("m", "bench bf16"), *(("c", c) for c in list(CONCATS)[2:]), *(("m", c) for c in list(MASKS)[2:])]
    for kind, case in order:
        if time.time() - BEGAN > seconds: print("late", kind, case); continue
        shape, names = (MASKS if kind == "m" else CONCATS)[case]
        try: of(kind, case, shape, names, where, 40 if case == "bench bf16" else 30, 60)
        except Exception as e: print(kind, case, type(e).__name__, str(e)[:150], flush=True)
if __name__ == "__main__":
    tools()
    main()
