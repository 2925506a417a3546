import torch, rooftile, warnings
import torch.nn.functional as F
from torch.func import grad, vmap, jacrev, vjp
warnings.simplefilter("ignore")
torch.manual_seed(0)
X=torch.randn(64,256,device="cuda",dtype=torch.bfloat16); W=torch.randn(256,device="cuda",dtype=torch.bfloat16)
Q=torch.randn(4,1,128,4,64,device="cuda",dtype=torch.bfloat16)
def far(a,b): return max(float((x.float()-y.float()).norm()/y.float().norm()) for x,y in zip(torch.utils._pytree.tree_leaves(a),torch.utils._pytree.tree_leaves(b)))
for name,ours,theirs,given in (("gelu",rooftile.gelu,F.gelu,(X,)),("rmsnorm",rooftile.rmsnorm,lambda x,w: F.rms_norm(x,(256,),w,1e-6),(X,W)),
    ("linear",rooftile.linear,F.linear,(X,torch.randn(128,256,device="cuda",dtype=torch.bfloat16)/16)),
    ("softmax",rooftile.softmax,lambda x: torch.softmax(x,-1),(X,)),
    ("attention",lambda q: rooftile.attention(q,q,q,causal=True),lambda q: F.scaled_dot_product_attention(*(q.transpose(1,2),)*3,is_causal=True).transpose(1,2),(Q[0],))):
    every=tuple(range(len(given)))
    loss=lambda f: lambda *a: f(*a).float().sin().sum()
    plain=[torch.autograd.grad(loss(ours)(*(l:=[t.clone().requires_grad_() for t in given])),l)]
    made=grad(loss(ours),every)(*given)
    s=tuple(torch.stack([t,t*2,t.flip(0)]) for t in given)
    print(name,"grad",far(made,plain[0]),far(made,grad(loss(theirs),every)(*given)),"samples",far(vmap(grad(loss(ours),every))(*s),vmap(grad(loss(theirs),every))(*s)) if name!="attention" else far(vmap(grad(loss(ours)))(Q),torch.stack([grad(loss(theirs))(q) for q in Q])), "vjp",far(vjp(ours,*given)[1](ours(*given)),vjp(theirs,*given)[1](theirs(*given))))
