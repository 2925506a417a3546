import sys
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
F=["mlp_forward<__nv_bfloat16, Sloped<rooftile::GeluTanh>, 256, 64, 3, 0, 2>","mlp_backward<__nv_bfloat16, Slope, 256, 64, 3, 0, 2>","gated_forward<__nv_bfloat16, rooftile::Silu, 256, 64, 3, 1, 2>","gated_backward<__nv_bfloat16, rooftile::Silu, 256, 64, 3, 1, 2>"]
for v in sys.argv[1:]:
    for f in F:
        try:
            k=compiled(Source(Path(".gpu/mlp43")/v/"v1_hopper.cu"),f,"sm_90a"); print(v,f[:14],k.registers,k.spill_bytes)
        except Exception as e: print(v,f[:14],"ERR",str(e)[:1500])
