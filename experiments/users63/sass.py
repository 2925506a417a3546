import sys, subprocess, tempfile, re, os
sys.path.insert(0, os.path.dirname(__file__))
import triton
from triton.compiler import ASTSource
from triton.backends.compiler import GPUTarget
import kernels as K
DIS = os.path.join(os.path.dirname(triton.__file__), "backends/nvidia/bin/nvdisasm")
P = {"gX":"*bf16","gBias":"*bf16","gMask":"*u8","gResidual":"*bf16","gOut":"*bf16","scale":"fp32"}
def sass(fn, const, warps, ints=("i32",)):
    names = [p.name for p in fn.params]
    sig = {n: "constexpr" if n in const else P.get(n, "i32") for n in names}
    attrs = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n in P and n != "scale" or n in ("N","stride_x","stride_mask","stride_residual","count","M") and n not in const}
    c = triton.compile(ASTSource(fn, sig, constexprs={(names.index(n),): v for n, v in const.items()}, attrs=attrs), target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(c.asm["cubin"]); f.flush()
        t = subprocess.run([DIS, "-c", f.name], capture_output=True, text=True).stdout
    code = [m for m in re.findall(r"^\s+(?:/\*[0-9a-f]+\*/)?\s+(@!?U?P\d+ )?([A-Z][A-Z0-9_.]+)", t, re.M)]
    ops = [b for a, b in code]
    return ops, t
for name, fn, const, w in [
    ("base 1024 w4", K.base, dict(ROWS=1, BLOCK_N=1024, POLICY=""), 4),
    ("axes 1024 w4 last", K.axes, dict(ROWS=1, BLOCK_N=1024, POLICY="", LAST="evict_last"), 4),
    ("axes 1024 w4", K.axes, dict(ROWS=1, BLOCK_N=1024, POLICY="", LAST=""), 4),
    ("axes 512 w4", K.axes, dict(ROWS=1, BLOCK_N=512, POLICY="", LAST=""), 4),
    ("flat 1024 w4", K.flat, dict(N=4096, BLOCK=1024), 4),
    ("flat 512 w4", K.flat, dict(N=4096, BLOCK=512), 4),
    ("bare 1024 w4", K.bare, dict(N=4096, BLOCK=1024), 4),
    ("bare 512 w4", K.bare, dict(N=4096, BLOCK=512), 4)]:
    ops, t = sass(fn, const, w)
    real = [o for o in ops if o not in ("NOP",) and not o.startswith("BRA")] if False else [o for o in ops if o != "NOP"]
    ld = [i for i, o in enumerate(real) if o.startswith("LDG")]
    print(f"{name:20} {len(real)} instr, loads at {ld} {[real[i] for i in ld]}, store at {[i for i,o in enumerate(real) if o.startswith('STG')]}", "policy" if any("CREATEPOLICY" in o or "R2UR" in o for o in real) else "", sum(o.startswith("MUFU") for o in real))
    if len(sys.argv) > 1 and sys.argv[1] in name: print(t)
