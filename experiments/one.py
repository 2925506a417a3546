import sys; sys.path.insert(0,'.gpu/exp')
import torch
which,i,T,B=sys.argv[1],int(sys.argv[2]),int(sys.argv[3]),int(sys.argv[4])
if which=='new': from rooftile.ops.attention import gluon_launchers as m
else: import importlib; m=importlib.import_module(which+'_launchers')
K=m.KERNELS[0]
torch.manual_seed(0)
q,k,v=(torch.randn(B,T,32,64,device='cuda').bfloat16() for _ in range(3))
call=dict(q=q,k=k,v=v,causal=True,scale=.125)
ref=torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1,2) for x in (q,k,v)),is_causal=True).transpose(1,2)
try:
    for n in range(30): o=K.bound(K.configs[i])(*call.values())[0]
    torch.cuda.synchronize(); print(which,i,T,B,'max err',float((o.float()-ref.float()).abs().max()))
except Exception as e: print(which,i,T,B,'FAILED',str(e)[:60])
