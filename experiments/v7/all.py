# compiles here what gpu.py will run
import re,sys
src=open(".gpu/v7/gpu.py").read(); a=src.index("from comp import"); b=src.index("def problem")
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
sys.path[:0]=[".gpu/v7"]
exec(src[a:b])
for n,s in srcs.items():
    k=compiled(s,"attention_backward<__nv_bfloat16, true>","sm_90a"); print(n,k.registers,k.spill_bytes,(k.loss or "")[:60])
