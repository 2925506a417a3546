import sys,torch
mode=sys.argv[1]
if mode=="triton":
    from rooftile.workbench import interpreter
import rooftile
from rooftile.core.kernel import OPS
from rooftile.cuda import simulator
from rooftile import attention_decode
torch.manual_seed(0)
bf=torch.bfloat16
for entry in ("-1, page 0 finite","-1, page 0 NaN","handed to another, NaN there","contiguous, NaN before the window"):
    B,T,H,G,D,page,N=1,2,2,1,128,16,10
    k,v=(torch.randn(12,page,G,D).to(bf) for _ in range(2)); q=torch.randn(B,T,H,D).to(bf)
    table=torch.arange(1,11,dtype=torch.int32)[None]; n=torch.tensor([140],dtype=torch.int32); W=20
    call=dict(q=q,k_cache=k,v_cache=v,lengths=n,block_table=table,sinks=None,scale=D**-.5,window=W,softcap=0.)
    ref=OPS["attention_decode"].kernel("reference")
    want=ref.run(*call.values())[0]
    k,v=k.clone(),v.clone()
    if entry.startswith("cont"):
        k,v=(x[1:11].reshape(1,160,G,D).clone() for x in (k,v)); k[:,:112]=float('nan'); v[:,:112]=float('nan'); call.update(k_cache=k,v_cache=v,block_table=None)
    else:
        table=table.clone()
        first=(140-T-W+1)//page  # first page in use by any query
        if entry[0]=="-":
            table[0,:first]=-1
            if "NaN" in entry: k[0]=float('nan'); v[0]=float('nan')
        else: 
            k[1:1+first]=float('nan'); v[1:1+first]=float('nan')
        call.update(k_cache=k,v_cache=v,block_table=table)
    for kern in OPS["attention_decode"].kernels:
        if (mode=="triton")!=kern.name.startswith("triton"): continue
        if kern.name=="triton.float32": continue
        for c in (kern.configs or (None,)):
            try:
                with simulator.active():
                    out=(kern.run(*call.values(),config=c) if c else kern.run(*call.values()))[0]
                print(entry,kern.name,c,"max off",float((out.float()-want.float()).abs().max()))
            except Exception as e: print(entry,kern.name,type(e).__name__,str(e)[:150])
            if mode!="triton": break
