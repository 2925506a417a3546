from pathlib import Path
H=Path(__file__).resolve().parent; W=Path("/work/wt-norms63/src/rooftile")
ahead=(W/"cuda/include/rooftile/ahead.cuh").read_text().replace("#pragma once\n","")
def inline(t): return t.replace('#include "rooftile/ahead.cuh"\n',"").replace("using namespace rooftile;\n",ahead.replace('#include "rooftile/check.cuh"\n',"")+"\nusing namespace rooftile;\n",1)
(H/"land3.cu").write_text(inline((W/"ops/_shared/cuda/sum_norm_v3_pipeline.cu").read_text()))
(H/"land6.cu").write_text(inline((W/"ops/layernorm/cuda/v6_pipeline.cu").read_text()))
(H/"land_add.cu").write_text((W/"ops/_shared/cuda/add_rows.cu").read_text())
t=(H/"lab3.py").read_text()
a=t.index('"""norms63'); b=t.index('import functools')
t=t[:a]+'''"""norms63, fourth: the branch's files as they are, and all who use add_rows. usage: PYTHONPATH=src python3 .gpu/norms63/lab4.py [seconds, 45]
land3, land6: sum_norm_v3_pipeline.cu and LayerNorm's v6_pipeline.cu; land_add: add_rows.cu. Predicted: as lab3's v3_ol, ln6_fo and add_x8, 1 to 1.4 us less of each gradient of parameters; of 65536 columns
(32 lanes across) even, of bias_mask_scale_add 32768 x 768 1 us of 37, of embedding's 256 x 768 (P = 132, N = 196608) even.
"""
'''+t[b:]
t=t.replace('"v3": (sum_pipeline, sum_pipeline.V3),','"v3": (sum_pipeline, sum_pipeline.V3), "land3": (sum_pipeline, sum_pipeline.V3), "land6": (layernorm, layernorm.V6),')
t=t.replace('    if kind.startswith("v3_w"): return','''    if kind == "land6":
        lanes, vecs, threads, _ = map(int, instance[:-1].split(", ")[-4:])
        return instance[:-1] + (", true>" if WIDTH[0] == 16 * lanes * vecs else ", false>")
    if kind.startswith("v3_w"): return''').replace("def variant(kind","WIDTH = [0]\n\ndef variant(kind").replace("    module, source = PLACE","    WIDTH[0] = call['dout'].shape[-1] * call['dout'].itemsize\n    module, source = PLACE")
t=t.replace('        if "_x" in add:','''        if s is not cuda_rows.ADD_ROWS: return REAL(s, instance, grid, block, *a, **k)
        if add == "land_add":
            sums, (partial, p, n), which = (list(a[:3]), a[3:6], 0) if instance.startswith("add_three") else ([a[0], a[1], a[1]], a[2:5], a[5])
            columns = 4 if n % 4 == 0 else 1
            across = min(32, max(8, power_of_2(-(-n * grid[1] // (1024 * columns)))))
            return REAL(S[add], f"add_rows<{', '.join(CTYPE[x.dtype] for x in sums)}, {columns}, {across}>", (-(-n // (across * columns)), grid[1]), 256, *sums, partial, p, n, which)
        if "_x" in add:''')
# who looks launch up where: add_three in sum_pipeline, add_rows in cuda_rows
t=t.replace('''    cuda_rows.launch = go
    try: return variant(kind, op, kernel, cfg, call)
    finally: cuda_rows.launch = REAL
''','''    cuda_rows.launch = go
    LAST[0] = go
    try: return variant(kind, op, kernel, cfg, call)
    finally: cuda_rows.launch, LAST[0] = REAL, None
''').replace("WIDTH = [0]\n","WIDTH, LAST = [0], [None]\n")
t=t.replace('if kind == "main": return run(*call.values())','''if kind == "main":
        if LAST[0] and kernel == "cuda.v3_pipeline" and "bias_mask" not in op: sum_pipeline.launch = LAST[0]
        try: return run(*call.values())
        finally: sum_pipeline.launch = REAL''')
t=t.replace('if s is source else REAL(s, instance, *a, **kw)','if s is source else (LAST[0] or REAL)(s, instance, *a, **kw)')
t=t.replace("from rooftile.cuda.source import Source\n","from rooftile.cuda.source import Source\nfrom rooftile.cuda.launch import CTYPE\nfrom rooftile.ops._shared.launch import power_of_2\n",1)
a=t.index("CASES = ["); b=t.index("def compile_one")
t=t[:a]+'''def three(op, kernel, kind, first="triton"):
    return (of(op, first, "main") if first else []) + of(op, kernel, "main") + (added(op, kernel, kind, "main", "land_add") if kind != "main" else added(op, kernel, kind, "land_add"))
V8, em, bm = "cuda.v8_exchange", "embedding_backward", "bias_mask_scale_add_backward"
CASES = [  # name, operator, case, versions
    ("dropout 8192x1024 layer", d, case(8192, 1024, {**DR, "norm": "layer"}), three(d, V3, "land3")),
    ("dropout 16384x4096 layer", d, case(16384, 4096, {**DR, "norm": "layer"}), three(d, V3, "land3")),
    ("dropout 16384x4096 rms", d, case(16384, 4096, {**DR, "norm": "rms", "affine": "weight"}), three(d, V3, "land3")),
    ("dropout 32768x768 layer f32", d, case(32768, 768, {**DR, "norm": "layer", "affine": "float32"}), three(d, V3, "land3")),
    ("add_layernorm 16384x4096", al, case(16384, 4096, E5), three(al, V3, "land3")),
    ("add_layernorm 32768x768 f32 lacks", al, case(32768, 768, {**F32, "stream": "io", "lacks": "f32"}), three(al, V3, "land3")),
    ("add_layernorm 32768x768 f32", al, case(32768, 768, F32), three(al, V3, "land3")),
    ("add_rmsnorm 16384x4096", ar, case(16384, 4096, E6), three(ar, V3, "land3")),
    ("layernorm 8192x8192", l, case(8192, 8192, E5), three(l, V6, "land6") + three(l, V8, "main", None)),
    ("layernorm 16384x4096", l, case(16384, 4096, E5), three(l, V6, "land6")),
    ("layernorm 32768x768 f32", l, case(32768, 768, F32), three(l, V6, "land6")),
    ("layernorm 16384x2048", l, case(16384, 2048, E5), three(l, V6, "land6")),
    ("layernorm 65536x1024", l, case(65536, 1024, E5), three(l, V6, "land6")),
    ("layernorm 4096x16384", l, case(4096, 16384, E5), three(l, V8, "main", None)),
    ("layernorm 2048x65536", l, case(2048, 65536, E5), three(l, V8, "main", None)),
    ("layernorm 64x1024", l, case(64, 1024, E5), three(l, V8, "main")),
    ("layernorm 64x8192", l, case(64, 8192, E5), three(l, V8, "main")),
    ("rmsnorm 16384x4096", r, case(16384, 4096, E6), three(r, V6, "main")),
    ("rmsnorm 8192x8192", r, case(8192, 8192, E6), three(r, V6, "main")),
    ("rmsnorm 32768x768 f32", r, case(32768, 768, {**E6, "affine": "float32"}), three(r, V6, "main")),
    ("rmsnorm 2048x65536", r, case(2048, 65536, E6), three(r, V8, "main", None)),
    ("rmsnorm 64x8192", r, case(64, 8192, E6), three(r, V8, "main")),
    ("bias_mask 32768x768", bm, case(32768, 768, {"scale": 0.5, "affine": "float32"}), three(bm, V3, "main", None)),
    ("bias_mask 16384x14336", bm, case(16384, 14336, {"scale": 0.5}), three(bm, V3, "main", None)),
    ("bias_mask 4096x4096", bm, case(4096, 4096, {"scale": 0.5}), three(bm, V3, "main", None)),
    ("embedding 256x768", em, Case({"M": 32768, "V": 256, "N": 768}, BF, {"padding_idx": -1}), three(em, "cuda.v4_shares", "main", None)),
    ("embedding 1x768", em, Case({"M": 32768, "V": 1, "N": 768}, BF, {"padding_idx": -1}), three(em, "cuda.v4_shares", "main", None)),
]

'''+t[b:]
(H/"lab4.py").write_text(t)
# the reduced one: v3 and v6 alone
t=(H/"lab4.py").read_text()
a=t.index('"""norms63'); b=t.index('import functools')
t=t[:a]+'''"""norms63, fourth: sum_norm_v3_pipeline.cu (land3) and LayerNorm's v6_pipeline.cu (land6) as they are on the branch. Predicted: as lab3's v3_ol and lab2's ln6_fo; of 3 and 4 vectors a thread (768, 1024) even."""
'''+t[b:]
a=t.index("def three("); b=t.index("def compile_one")
t=t[:a]+'''def three(op, kernel, kind): return of(op, "triton", "main") + of(op, kernel, "main", kind)
CASES = [  # name, operator, case, versions
    ("layernorm 32768x768 f32", l, case(32768, 768, F32), three(l, V6, "land6")),
    ("layernorm 8192x8192", l, case(8192, 8192, E5), three(l, V6, "land6") + of(l, "cuda.v8_exchange", "main")),
    ("layernorm 16384x4096", l, case(16384, 4096, E5), three(l, V6, "land6")),
    ("layernorm 16384x2048", l, case(16384, 2048, E5), three(l, V6, "land6")),
    ("layernorm 65536x1024", l, case(65536, 1024, E5), three(l, V6, "land6")),
    ("dropout 8192x1024 layer", d, case(8192, 1024, {**DR, "norm": "layer"}), three(d, V3, "land3")),
    ("dropout 16384x4096 layer", d, case(16384, 4096, {**DR, "norm": "layer"}), three(d, V3, "land3")),
    ("dropout 32768x768 layer f32", d, case(32768, 768, {**DR, "norm": "layer", "affine": "float32"}), three(d, V3, "land3")),
    ("dropout 16384x2048 layer", d, case(16384, 2048, {**DR, "norm": "layer"}), three(d, V3, "land3")),
    ("add_layernorm 16384x4096", al, case(16384, 4096, E5), three(al, V3, "land3")),
    ("add_layernorm 32768x768 f32 lacks", al, case(32768, 768, {**F32, "stream": "io", "lacks": "f32"}), three(al, V3, "land3")),
    ("add_rmsnorm 16384x4096", ar, case(16384, 4096, E6), three(ar, V3, "land3")),
]

'''+t[b:]
t=t.replace('"rmsnorm_quantize", "main"','"rmsnorm_quantize", "main"')
(H/"lab4.py").write_text(t)
