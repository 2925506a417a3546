from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
s=Source(Path("src/rooftile/ops/attention/cuda/v7_hopper_latent_backward.cu"))
for T in ("__nv_bfloat16","__half"):
  for c in ("true","false"):
    k=compiled(s,f"attention_backward<{T}, {c}>","sm_90a"); print(T,c,k.registers,k.spill_bytes,(k.loss or "")[:70],k.shared_bytes)
