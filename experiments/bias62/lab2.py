"""bias62, second: what is about to land, beside what it replaces, and where it might lose. usage: PYTHONPATH=src python3 .gpu/bias62/lab2.py [seconds, 60]
land_v3.cu: the gradient of bias_mask_scale_add by cp.async (lab.py's pipe 96,8,1,8 and 128,6,1,4). land_add.cu: add_rows as lab.py's new W,8 warm, W = 8, 16 or 32 by the partial rows, and of 4 columns
a lane 56 registers in place of 32, so that 8 rows are asked for at once and no two blocks stand on one multiprocessor; cold: its code not run once before; four: 4 rows at once.
Predicted: N 36.2 (47.1 today), W 289, B 27.9, K 8.3; rows from 300 on no loss against v2, whose launches are the same two; float32 as bf16. Norms as new32,8 warm in lab.py; Y 108.5 (110.3).
dropout_add_norm 8192 x 1024: two stages beat three by 2 % where turns are 8; of 65536 rows and without dropout it should be even, as the third stage is for long runs.
"""
import lab, functools, sys, time, torch
from lab import *
S.update({n: Source(H / f"{n}.cu") for n in ("land_v3", "land_add", "land_add_cold", "land_add_four")})
old_adder = lab.adder
def adder(kind):
    if not (isinstance(kind, str) and kind.startswith("land")): return old_adder(kind)
    def go(source, instance, grid, block, *a, **k):
        if source is not cuda_rows.ADD_ROWS: return REAL(source, instance, grid, block, *a, **k)
        return REAL(S[kind], f"{instance[:-1]}, {block // 32}>", grid, block, *a, **k)
    return go
lab.adder = adder
def v3(cfg, add, dout, bias, mask, scale):
    most, threads, stages = cfg
    m, n = dout.shape
    dx, dbias = torch.empty_like(dout), torch.empty_like(bias)
    vectors = cdiv(n * dout.itemsize, 16)
    strips = cdiv(vectors, most)
    lanes = cdiv(vectors, strips)
    down = min(64, threads // lanes)
    blocks = max(1, evenly(cdiv(m, down), resident(dout, threads // (lanes * down)) // strips))
    partial = dout.new_empty((blocks, n), dtype=torch.float32)
    launch(S["land_v3"], f"backward<{CTYPE[dout.dtype]}, {stages}>", (strips, blocks), (lanes, down), dx, partial, dout, mask.view(torch.uint8), *divmod(m, down), n, scale, n, n,
           shared=stages * lanes * down * (16 + 16 // dout.itemsize))
    with adding(add): cuda_rows.add_rows(partial, dbias)
    return dx, dbias
L = "land_add"
def land(*cfgs): return tod([(None, "main")]) + [(f"v3 {','.join(map(str, c))} {a}", functools.partial(v3, c, a)) for c, a in cfgs]
A8, A6, A4, X8, Y8 = (128, 768, 8), (128, 768, 6), (128, 768, 4), (256, 768, 8), (64, 768, 8)
FULL = land((A8, L), (A8, "main"), (A6, L), (A4, L), (X8, L), (Y8, L), ((128, 384, 8), L))
SOME = land((A8, L), (A4, L), (X8, L))
ADDS = ["main", "at", L, "land_add_cold", "land_add_four"]
def drops(op): return norm(op, "cuda.v3_pipeline", [None, D(4, 256, 2, 256)], ["main", L])
b, H5 = "bias_mask_scale_add_backward", {"scale": 0.5}
E5 = {"eps": 1e-5}
lab.CASES.clear()
lab.CASES.update({
    "N": (b, {"M": 32768, "N": 768}, {**H5, "affine": "float32"}, FULL),
    "W": (b, {"M": 16384, "N": 14336}, H5, FULL), "B": (b, {"M": 4096, "N": 4096}, H5, FULL), "K": (b, {"M": 1024, "N": 1024}, H5, SOME),
    "b1": (b, {"M": 300, "N": 4096}, H5, SOME), "b2": (b, {"M": 512, "N": 14336}, H5, SOME), "b3": (b, {"M": 300, "N": 512}, H5, SOME), "b4": (b, {"M": 8192, "N": 2880}, H5, SOME),
    "b5": (b, {"M": 1000000, "N": 64}, H5, SOME), "b6": (b, {"M": 2048, "N": 65536}, H5, SOME), "b7": (b, {"M": 100000, "N": 8}, H5, SOME),
    "S": ("dropout_add_norm_backward", {"M": 8192, "N": 1024}, {"norm": "layer", "p": 0.1, **E5}, drops("dropout_add_norm_backward")),
    "S2": ("dropout_add_norm_backward", {"M": 65536, "N": 1024}, {"norm": "layer", "p": 0.1, **E5}, drops("dropout_add_norm_backward")),
    "S3": ("dropout_add_norm_backward", {"M": 8192, "N": 1024}, {"norm": "rms", "p": 0.1, "affine": "weight", **E5}, drops("dropout_add_norm_backward")),
    "S4": ("add_layernorm_backward", {"M": 32768, "N": 1024}, E5, drops("add_layernorm_backward")),
    "S5": ("add_layernorm_backward", {"M": 8192, "N": 1024}, E5, drops("add_layernorm_backward")),
    "L": ("layernorm_backward", {"M": 32768, "N": 768}, {**E5, "affine": "float32"}, norm("layernorm_backward", "cuda.v6_pipeline", [None], ADDS)),
    "R": ("rmsnorm_backward", {"M": 16384, "N": 4096}, E5, norm("rmsnorm_backward", "cuda.v6_pipeline", [None], ADDS)),
    "Y": ("layernorm_backward", {"M": 8192, "N": 8192}, E5, norm("layernorm_backward", "cuda.v6_pipeline", [None], ADDS)),
    "Z": ("layernorm_backward", {"M": 4096, "N": 16384}, E5, norm("layernorm_backward", "cuda.v8_exchange", [None], ADDS)),
})
lab.bound = lambda case, run, call: (lambda: run(call=call)) if case[0] in "SLRYZ" else (lambda: run(**call))
if __name__ == "__main__": lab.main()
