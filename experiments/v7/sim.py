import sys,torch,time; sys.path[:0]=["tests"]
from attention_gradients import close, problem
from rooftile.cuda import simulator
from rooftile.core.kernel import OPS
import rooftile
from rooftile.ops.attention import latent_kernels as wide_kernels
K=wide_kernels.BACKWARD[0]
for level in ("checks","values"):
    for (t,s,c,kw) in [(1,1,True,{}),(127,128,False,{}),(129,63,True,{}),(200,65,True,{}),(193,384,True,{}),(64,300,False,{}),(140,150,True,dict(b=2,h=6,g=2)),(400,140,False,dict(b=1,h=2,g=1))]:
        call=problem(t,s,192,c,torch.bfloat16 if s%2 else torch.float16,**kw)
        with simulator.active(level): got=K.run(*call)
        if not close(call,got): print("BAD",t,s,c,kw,flush=True)
    print(level)
print([k.name for k in OPS["attention_backward"].kernels][:6])
