"""Llama's step with chunks of the head of several sizes, in turn; and what its captured step allocates."""
import collections, statistics, sys, torch
from rooftile.training import benchmark as b
from rooftile.ops.linear_cross_entropy import chunked_kernels as c
setup = b.LLAMA
config = setup.config(steps=300, lr=3e-4, min_lr=3e-4, warmup=0, clip=0.0)
tokens = b._tokens(setup.model.vocab_size)
G = 2**30
def trace(name, one):
    torch.cuda.memory._record_memory_history(max_entries=400000, context="alloc", stacks="python")
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    one.run(1)
    torch.cuda.synchronize()
    snap = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    live, cur, peak, at, seg, segs = {}, 0, 0, {}, 0, []
    peaks = []
    for e in snap["device_traces"][0]:
        a = e["action"]
        if a == "alloc":
            live[e["addr"]] = e; cur += e["size"]
            if cur > peak: peak, at = cur, dict(live)
        elif a == "free_completed":
            if e["addr"] in live: cur -= live.pop(e["addr"])["size"]
            else: cur -= e["size"]
        elif a == "segment_alloc": seg += e["size"]; segs.append(e["size"])
        elif a == "segment_free": seg -= e["size"]
    print(f"{name}: before allocated {before[0]/G:.3f} reserved {before[1]/G:.3f}; peak of capture {peak/G:.3f}, segments {seg/G:.3f} of {len(segs)}, pool {one.stepper.pool_bytes/G:.3f}")
    by = collections.Counter(); n = collections.Counter()
    for e in at.values():
        fr = [f for f in e.get("frames", []) if "rooftile" in f["filename"]][:2]
        key = (e["size"], " < ".join(f"{f['filename'].split('/')[-1]}:{f['line']}" for f in fr))
        by[key] += e["size"]; n[key] += 1
    for k, v in by.most_common(28): print(f"   {v/2**20:9.1f} MiB = {n[k]:3d} x {k[0]/2**20:8.1f}  {k[1]}")
field = {}
for rows in map(int, sys.argv[1].split(",")):
    c._with_gradients = lambda x, weight, chunk, rows=rows: rows
    one = field[rows] = b._Contestant("rooftile", setup.model, config, tokens)
    one.run(3)
    trace(rows, one) if rows in (2048, 4096) else one.run(1)
    print(rows, "pool", one.stepper.pool_bytes, "allocated", torch.cuda.memory_allocated(), flush=True)
times = collections.defaultdict(list)
order = list(field)
for r in range(4):
    for rows in order[r % len(order):] + order[:r % len(order)]:
        times[rows].append(field[rows].timed(8)[0])
for rows in order: print(rows, "ms", [round(x, 2) for x in times[rows]], "median", round(statistics.median(times[rows]), 2))
