import sys
sys.path.insert(0, ".gpu/norm61")
from pathlib import Path
from mkpair import weight_in_registers
from rooftile.cuda import compile as compiler
from rooftile.cuda.source import Source
V8 = Path("src/rooftile/ops/layernorm/cuda/v8_exchange.cu")
outs = [Path(f".gpu/norm61/v8_w{h}.cu") for h in (1, 2, 4)]; [o.write_text(weight_in_registers(V8.read_text(), h)) for o, h in zip(outs, (1, 2, 4))]
for n, s in (("v8", V8.resolve()), *((o.stem, o.resolve()) for o in outs)):
    for c in ("8, 4, 256, 2, 2", "8, 4, 256, 3, 2", "4, 4, 512, 2, 1"):
        m = compiler.compiled(Source(s), f"layernorm_backward<__nv_bfloat16, __nv_bfloat16, true, true, {c}>", "sm_90a")
        print(n, c, m.registers, m.spill_bytes, getattr(m, "shared_bytes", None))
