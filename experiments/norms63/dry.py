"""compiles what lab.py launches (meta tensors, as `rooftile build`), and runs every variant on small cases in the simulator against main's results"""
import sys, os, torch, functools
import importlib
lab = importlib.import_module(os.environ.get('LAB', 'lab')); globals().update({k: v for k, v in vars(lab).items() if not k.startswith('__')})
from rooftile.workbench.explain import blank
from rooftile.cuda import simulator
from rooftile.workbench.check import poisoned
which = sys.argv[1] if len(sys.argv) > 1 else "both"
titles = sys.argv[2] if len(sys.argv) > 2 else ""
if which in ("both", "compile"):
    jobs = {}
    for title, op, c, versions in lab.CASES:
        if titles not in title: continue
        call = blank(OPS[op].spec, c, "meta")
        with recording() as seen:
            for name, run in versions:
                if "triton" in name: continue
                run(call=call)
                for x in seen:
                  if (str(x.source.path), x.instance) in jobs: continue
                  jobs[str(x.source.path), x.instance] = 1
                  m = compiler.compiled(x.source, x.instance, "sm_90a")
                  print(title, name, x.source.path.stem, x.instance.replace("__nv_bfloat16", "b"), "grid", x.grid, x.block, "shared", x.shared, "registers", m.registers, "spill", m.spill_bytes, flush=True)
if which in ("both", "simulate"):
    small = {"grad_norm": [Case({"P": ((70001,), (2048,), (33, 1000), (), (0,), (3,), (8192,), (16384,))}, t, {}) for t in (BF, torch.float32)], "dropout_add_norm_backward": [case(19, 1024, {**DR, "norm": "layer"}), case(5, 4096, {**DR, "norm": "layer"}), case(9, 264, {**DR, "norm": "layer"}), case(9, 264, {**DR, "p": 1.0, "norm": "layer"}), case(9, 264, {**DR, "p": 0.0, "norm": "rms"}), case(9, 768, {**DR, "norm": "layer", "affine": "float32"})],
             "layernorm_backward": [case(9, 8192, E5), case(7, 264, E5), case(19, 512, E5), case(5, 4096, E5), case(5, 4096, {**E5, "affine": "none"})], "rmsnorm_quantize": [] if not hasattr(lab, "TOKEN") else [Case({"M": 5, "N": 8192}, BF, c.params) for c in TOKEN] + [Case({"M": 5, "N": 264}, BF, TOKEN[0].params)],
             "add_layernorm_backward": [case(19, 1024, E5), case(5, 4096, E5), case(9, 264, E5), case(9, 768, {**E5, "affine": "float32", "stream": "io", "lacks": "f32"})], "add_rmsnorm_backward": [case(5, 4096, E5), case(9, 264, E5)], "embedding_backward": [], "bias_mask_scale_add_backward": [case(37, 264, {"scale": 0.5})], "rmsnorm_backward": [case(9, 8192, E5), case(7, 264, E5), case(19, 512, E5), case(5, 4096, E5)]}
    done = set()
    for title, op, c, versions in lab.CASES:
        for s in small[op]:
            call = OPS[op].spec.draw(s, 0, "cpu"); right = {}
            for name, run in versions:
                if "triton" in name or (op, s.id, name) in done or titles not in title: continue
                done.add((op, s.id, name))
                kernel = name.split()[0]
                k = next(k for k in OPS[op].kernels if k.name.endswith(kernel))
                with simulator.active():
                    if k.refuse and k.refuse(call): continue
                try:
                    with simulator.active(), poisoned(): got = run(call=call)
                except Exception as e: print(op, s.id, name, type(e).__name__, str(e)[:300]); continue
                ref = OPS[op].spec.reference(**call)
                if " main" in name: right[kernel] = got
                print(op, s.id, name, "bits" if kernel in right and same(got, right[kernel]) else "", far(got, ref) or "right", flush=True)
