"""Llama's step: gated walks of 132 blocks and of 128; AdamW by layers as their gradients come, in line and on a stream of less priority."""
import collections, statistics, sys, torch
from rooftile.training import benchmark as b
from rooftile.training.stepper import Stepper
from rooftile.ops._shared import hopper_products as hp
from rooftile.ops.mlp import cuda_kernels as m
from rooftile.core.kernel import OPS
even = hp.walk
def every(source, instance, config, x, sizes, arguments, beside=0, parts=1):
    (mm, f, k), (n, step, stages) = sizes, (config[key] for key in ("BLOCK_N", "BLOCK_K", "STAGES"))
    blocks = min(hp.cdiv(mm, hp.BLOCK_M) * hp.cdiv(f, n // parts), hp.processors(x))
    shared = stages * (hp.BLOCK_M + n) * step * 2 + hp.BLOCK_M * n * 2 + beside
    hp.launch(source, instance, blocks, 384, *arguments, mm, f, hp.cdiv(k, step), config["GROUP"], shared=shared)
class Split:
    max_norm = 1.0  # it measures
    def __init__(self, whole, network, stream, each=1):
        self.stream, self.subs, chunks = stream, [], collections.OrderedDict()
        kinds = {id(p): g for g in whole.param_groups for p in g["params"]}
        for name, p in network.named_parameters():
            parts = name.split(".")
            key = next((int(x) // each for x in parts if x.isdigit()), parts[-2] if "norm" in name else name)
            chunks.setdefault(key, []).append(p)
        print({k: sum(p.numel() for p in v) for k, v in chunks.items()})
        first = whole.param_groups[0]
        for key, ps in chunks.items():
            groups = [{"params": [p for p in ps if kinds[id(p)] is g], "weight_decay": g["weight_decay"]} for g in whole.param_groups]
            groups = [g for g in groups if g["params"]]
            sub = type(whole)(groups, lr=first["lr"], betas=first["betas"], eps=first["eps"], max_norm=whole.max_norm, state_dtype=whole.state_dtype, stochastic=whole.stochastic)
            self.subs.append(sub)
            box = [len(ps), len(ps)]
            def hook(p, sub=sub, box=box):
                box[0] -= 1
                if box[0] == 0:
                    box[0] = box[1]
                    if self.stream is None: sub.step(); return
                    here = torch.cuda.current_stream(); self.stream.wait_stream(here)
                    with torch.cuda.stream(self.stream): sub.step()
            for p in ps: p.register_post_accumulate_grad_hook(hook)
    @property
    def param_groups(self): return [g for s in self.subs for g in s.param_groups]
    def step(self):
        if self.stream is not None: torch.cuda.current_stream().wait_stream(self.stream)
        self.grad_norm = torch.stack([s.grad_norm for s in self.subs]).square().sum().sqrt()
    def advance(self):
        for s in self.subs: s.advance()
    def zero_grad(self, set_to_none=True):
        for s in self.subs: s.zero_grad(set_to_none)
setup = b.LLAMA
config = setup.config(steps=300, lr=3e-4, min_lr=3e-4, warmup=0, clip=0.0)
tokens = b._tokens(setup.model.vocab_size)
field = {}
for name, walk, split in (("every", every, None), ("even", even, None), ("inline", even, "inline"), ("side", even, "side")):
    m.walk = walk
    for op in OPS.values(): op.forget()
    one = b._Contestant("rooftile", setup.model, config, tokens)
    if split:
        net, opt = one.stepper.forward, one.stepper.optimizer
        one.stepper = Stepper(net, Split(opt, net, torch.cuda.Stream(priority=0) if split == "side" else None), one.config)
        if split == "side": one.stepper.static.side = torch.cuda.Stream(priority=-3)
    before = torch.cuda.memory_allocated()
    losses = one.run(5)
    field[name] = one
    print(name, [round(x.item(), 4) for x in losses], "pool", one.stepper.pool_bytes / 1e9, flush=True)
times = collections.defaultdict(list)
names = list(field)
for r in range(6):
    for name in (names if r % 2 == 0 else names[::-1]): times[name].append(field[name].timed(8)[0])
for name in field: print(name, [round(x, 2) for x in times[name]], "median", round(statistics.median(times[name]), 2), flush=True)
