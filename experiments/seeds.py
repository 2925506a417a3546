import sys, contextlib, pathlib, tempfile, torch
from attention_gradients import close, problem
from faulty_kernels import rewritten
from rooftile.cuda import simulator
from rooftile.ops.attention import cuda_kernels
from rooftile.core.kernel import OPS
K={k.name:k for k in cuda_kernels.BACKWARD}
good=cuda_kernels.V5
cuda_kernels.V5=rewritten(good,"!= int(2 * anew(w.tiles))","< int(2 * anew(w.tiles)) - 1",pathlib.Path(tempfile.mkdtemp()))
cuda_kernels.dealt=lambda by,group,tiles,*_: cuda_kernels.Dealt(1,1,1,tiles)
cuda_kernels.walked=lambda most,group,tiles: min(2,group)
cuda_kernels.resident=lambda *_:4
call=problem(300,130,128,True,h=4,g=2)
for seed in range(int(sys.argv[1]),int(sys.argv[2])):
    try:
        with simulator.active("all",seed=seed): ok=close(call,K["cuda.v5_hopper"].run(*call))
        if not ok: print(seed,"wrong",flush=True); 
    except simulator.Found as e: print(seed,"found",str(e)[:150],flush=True)
