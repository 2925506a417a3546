import subprocess,glob,re,sys
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
dis=glob.glob('/work/main/.venv/lib/python3*/site-packages/triton/backends/nvidia/bin/nvdisasm')[0]
for f,i,a in (("/work/main/src/rooftile/ops/rmsnorm/cuda/v6_pipeline.cu","rmsnorm_backward<__nv_bfloat16, __nv_bfloat16, true, 1024, 1, 1024, 3>","sm_100a"),("/work/wt-seg/src/rooftile/ops/rmsnorm/cuda/v6_pipeline.cu","rmsnorm_backward<__nv_bfloat16, __nv_bfloat16, true, 1024, 1, 1024, 3>","sm_120a"),("/work/wt-seg/src/rooftile/ops/layernorm/cuda/v6_pipeline.cu","layernorm_backward<__nv_bfloat16, __nv_bfloat16, true, true, 512, 4, 512, 2>","sm_100a"),("/work/main/.gpu/seg60/scan_own.cu","tiles<__nv_bfloat16, float, 4, 8, 6, 3, 2, false, true>","sm_90a")):
    try: c=compiled(Source(Path(f)),i,a)
    except Exception as e: print(i,str(e)[:200]); continue
    Path('/tmp/ds/q3.cubin').write_bytes(c.cubin)
    out=subprocess.run([dis,'-c','/tmp/ds/q3.cubin'],capture_output=True,text=True).stdout
    L=[re.sub(r'\s+',' ',l.split('*/')[1])[:90] for l in out.splitlines() if 'LDGSTS' in l]
    print(Path(f).parts[-3],i,a,c.registers,c.spill_bytes,len(L),'bad',sum('UR0]' in l for l in L),L[:1])
