"""Llama's step with gated walks of 132 blocks and of as few as walk no more tiles each, in turn. On branch `next`, where walk() has the latter."""
import collections, statistics, torch
from rooftile.training import benchmark as b
from rooftile.ops._shared import hopper_products as hp
from rooftile.ops.mlp import cuda_kernels as m
even = hp.walk
def every(source, instance, config, x, sizes, arguments, beside=0, parts=1):
    (mm, f, k), (n, step, stages) = sizes, (config[key] for key in ("BLOCK_N", "BLOCK_K", "STAGES"))
    blocks = min(hp.cdiv(mm, hp.BLOCK_M) * hp.cdiv(f, n // parts), hp.processors(x))
    shared = stages * (hp.BLOCK_M + n) * step * 2 + hp.BLOCK_M * n * 2 + beside
    hp.launch(source, instance, blocks, 384, *arguments, mm, f, hp.cdiv(k, step), config["GROUP"], shared=shared)
setup = b.LLAMA
config = setup.config(steps=300, lr=3e-4, min_lr=3e-4, warmup=0, clip=0.0)
tokens = b._tokens(setup.model.vocab_size)
field = {}
for name, walk in (("even", even), ("every", every)):
    m.walk = walk
    for op in __import__("rooftile.core.kernel", fromlist=["OPS"]).OPS.values(): op.forget()
    one = field[name] = b._Contestant("rooftile", setup.model, config, tokens)
    one.run(4)
times = collections.defaultdict(list)
for r in range(6):
    for name in (("even", "every"), ("every", "even"))[r % 2]: times[name].append(field[name].timed(8)[0])
for name in field: print(name, [round(x, 2) for x in times[name]], "median", round(statistics.median(times[name]), 2))
