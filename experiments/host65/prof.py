import time, torch, torch.nn.functional as F, rooftile, cProfile, pstats, io
dev="cuda"
def med(f,n=100,rounds=40):
    for _ in range(50): f()
    torch.cuda.synchronize(); got=[]
    for _ in range(rounds):
        s=time.perf_counter()
        for _ in range(n): f()
        got.append((time.perf_counter()-s)/n*1e6); torch.cuda.synchronize()
    got.sort(); return got[len(got)//5]
def rand(*s): return torch.randn(*s,device=dev).bfloat16()
x,w1,b1,w2,b2=rand(24,256),rand(1024,256),rand(1024),rand(256,1024),rand(256); res=rand(24,256); w=rand(256,256)
y=rand(64,1024)
with torch.no_grad():
    fs={"F.linear":lambda: F.linear(x,w1,b1),"rooftile.linear":lambda: rooftile.linear(x,w1,b1),
        "torch mlp":lambda: F.linear(F.gelu(F.linear(x,w1,b1),approximate="tanh"),w2,b2),"rooftile.mlp":lambda: rooftile.mlp(x,w1,b1,w2,b2),
        "torch linear_add":lambda: F.linear(x,w,b2)+res,"rooftile.linear_add":lambda: rooftile.linear_add(x,w,res,b2),"linear_add, no bias":lambda: rooftile.linear_add(x,w,res),
        "F.gelu":lambda: F.gelu(y,approximate="tanh"),"rooftile.gelu":lambda: rooftile.gelu(y,"tanh"),"F.softmax":lambda: F.softmax(y,-1),"rooftile.softmax":lambda: rooftile.softmax(y)}
    for _ in range(2):
        print({n: round(med(f),1) for n,f in fs.items()},flush=True)
    for n in ("rooftile.mlp","rooftile.linear_add","rooftile.linear"):
        p=cProfile.Profile(); f=fs[n]; p.enable()
        for _ in range(1000): f()
        p.disable(); s=io.StringIO(); pstats.Stats(p,stream=s).sort_stats("tottime").print_stats(14); print(n); print("\n".join(l[:110] for l in s.getvalue().splitlines()[6:24]))
