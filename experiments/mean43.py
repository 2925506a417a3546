import torch, rooftile, collections
from rooftile.core.kernel import OPS, forced, Refused
F=torch.nn.functional
worst=collections.defaultdict(list)
for N in (100,768,896,1000,1024,1280,1536,1792,2048,2304,2560,3072,3584,3840,4096,5120,5376,6144,6656,7168,8192,10240,12288,14336,16384,28672,65536):
    for v in (30000.0,1000.0,-65504.0,3.0):
        x=torch.full((4,N),v,device="cuda",dtype=torch.float16)
        ref=F.layer_norm(x,(N,))
        e=ref.abs().max().item()
        if e>1e-3: worst["torch"].append((N,v,e))
        for op,call in (("layernorm",lambda: rooftile.layernorm(x,None,None)),("dropout_add_norm",lambda: rooftile.dropout_add_norm(x,torch.zeros_like(x),None,None,p=0.0,norm="layer")[0])):
            for k in OPS[op].kernels:
                if k.name=="reference": continue
                try:
                    with forced(op,k.name): y=call()
                except Refused: continue
                except Exception as ex: worst[op+" "+k.name].append(("error",str(ex)[:80])); continue
                y=y[0] if isinstance(y,tuple) else y
                e=y.float().abs().max().item()
                if e>1e-3: worst[op+" "+k.name].append((N,v,round(e,4)))
for k,w in worst.items(): print(k,len(w),w[:6])
print("mean done")
