from pathlib import Path
import torch, os
from rooftile.cuda.launch import CTYPE, launch
from rooftile.cuda.source import Source
from rooftile.cuda.tensor_map import TensorMap
from rooftile.ops._shared.launch import cdiv
LOG2E = 1.4426950408889634
SH=216*1024+1280
def source(v):
    p=Path(f"/tmp/v7_{v}.cu"); p.write_text(Path(".gpu/v7/v7.cu").read_text().replace("#define VARIANT 1",f"#define VARIANT {v}")); return Source(p)
def latent(src, dout, q, k, v, out, lse, causal, scale):
    (b,t,h,d),(s,g),dv=q.shape,k.shape[1:3],v.shape[-1]
    dq,dk,dv_=(x.new_empty(x.shape) for x in (q,k,v))
    blocks=cdiv(t,64)*b*h
    sums=q.new_empty(blocks,64*d,dtype=torch.float32); rows=q.new_empty(blocks,2,64,dtype=torch.float32)
    c=CTYPE[q.dtype]
    launch(src,f"prepare<{c}>",blocks*4,256,sums,rows,dout,out,lse.contiguous(),h,t,*dout.stride()[:3],*out.stride()[:3])
    maps=[TensorMap(x,(1,64,1,64),128) for x in (dk,dv_,q)]+[TensorMap(k,(1,128,1,32),64),TensorMap(v,(1,128,1,64),128),TensorMap(dout,(1,64,1,64),128)]
    launch(src,f"attention_backward<{c}, {str(causal).lower()}>",cdiv(s,128)*b*g,256,*maps,sums,rows,g,h//g,t,s,scale,scale*LOG2E,shared=SH)
    launch(src,f"finish<{c}>",blocks*2,384,dq,sums,h,t,*dq.stride()[:3],scale)
    return dq,dk,dv_
