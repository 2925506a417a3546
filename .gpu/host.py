import torch, time, rooftile, torch.nn.functional as F, triton
from rooftile.core import timing
from rooftile.core.kernel import OPS, _key
from rooftile.ops.softmax import triton_kernels as tk
from rooftile.core import register
d=torch.device("cuda",0)
x=torch.randn(64,768,device=d,dtype=torch.bfloat16); w=torch.randn(768,device=d,dtype=torch.bfloat16)
out=torch.empty_like(x)
op=OPS["softmax"]
h=lambda f: round(timing.host(f,d,5000),2)
with torch.no_grad():
    print("F.layer_norm",h(lambda:F.layer_norm(x,(768,),w,w)))
    print("torch.softmax",h(lambda:torch.softmax(x,-1)))
    print("api softmax",h(lambda:rooftile.softmax(x)))
    print("op()",h(lambda:op(x)))
    print("launch",h(lambda:op.launch(x)))
    print("run",h(lambda:tk.softmax(x)))
    print("key",h(lambda:_key((x,))))
    print("second?",h(lambda:register.needs_second_door((x,))))
    print("empty",h(lambda:torch.empty(x.shape,dtype=x.dtype,device=x.device)),"empty_like",h(lambda:torch.empty_like(x)))
    per, block, warps = tk._tile(768)
    g=(triton.cdiv(64,per),)
    print("jit",h(lambda:tk._forward[g](x,out,64,768,768,ROWS=per,BLOCK_N=block,num_warps=warps)))
    k=tk._forward[g](x,out,64,768,768,ROWS=per,BLOCK_N=block,num_warps=warps)
    g3=(*g,1,1)
    r=k[g3]
    try:
        print("compiled[grid]()",h(lambda:k[g3](x,out,64,768,768,per,block)))
        print("runner",h(lambda:r(x,out,64,768,768,per,block)))
        from triton.runtime import driver
        s=torch.cuda.current_stream().cuda_stream
        print("k.run",h(lambda:k.run(g3[0],1,1,s,k.function,k.packed_metadata,None,None,None,x,out,64,768,768,per,block)))
        print("get_stream",h(lambda:driver.active.get_current_stream(0)))
        torch.testing.assert_close(out, torch.softmax(x,-1))
    except Exception as e: print(repr(e))
    print("op grad path", end=" ")
xg=x.clone().requires_grad_()
print(h(lambda:op(xg)), "F.softmax grad",h(lambda:torch.softmax(xg,-1)))
