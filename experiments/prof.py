import torch
from rooftile.ops.attention import cuda_kernels as ck
import rooftile
from torch.profiler import profile, ProfilerActivity
dev = torch.device("cuda"); K = {k.name: k for k in ck.BACKWARD}; dealt = ck.dealt; cdiv = lambda a, b: -(-a // b)
flush = torch.empty(2**28, dtype=torch.uint8, device=dev)
def go(B,T,H,G,D,tgs,layout="BTHD"):
    torch.manual_seed(0)
    def new(h):
        x = torch.randn(B,T,h,D,device=dev).bfloat16()
        return x if layout == "BTHD" else x.transpose(1,2).contiguous().transpose(1,2)
    q, do, k, v = new(H), new(H), new(G), new(G)
    out, lse = rooftile.attention(q, k, v, causal=True, return_lse=True)
    if layout != "BTHD": out = out.transpose(1,2).contiguous().transpose(1,2)
    steps = B * H * sum(-(-T // 80) - j * 128 // 80 for j in range(T // 128)) / 132
    for tg in tgs:
        ck.dealt = dealt if tg is None else lambda causal, ordered, group, tiles: (tg, tg * cdiv(ck.LEAD, tg * tiles) + (tg == 1))
        for _ in range(2): K["cuda.v5_hopper"].run(do, q, k, v, out, lse, True, D**-.5)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as p:
            for _ in range(6): flush.zero_(); K["cuda.v5_hopper"].run(do, q, k, v, out, lse, True, D**-.5)
            torch.cuda.synchronize()
        t = {}
        for e in p.events():
            n = next((n for n in ("prepare", "attention_backward", "finish") if n in e.name), None)
            if n: t.setdefault(n, []).append(e.device_time)
        t = {n: sorted(x)[len(x)//2] for n, x in t.items()}
        print((B,T,H,G,D), layout, "tg", tg, {n: f"{x:.0f}" for n, x in t.items()}, "us a step %.2f" % (t["attention_backward"] / steps), flush=True)
    ck.dealt = dealt
go(1,8192,64,8,128,(None,1,2,3,4,8)); go(1,8192,64,8,128,(None,1,8),"BHTD")
go(1,8192,64,64,128,(None,4,8)); go(1,8192,64,64,128,(None,),"BHTD"); go(1,8192,64,16,128,(None,1,2,8)); go(1,8192,16,2,128,(None,1)); go(4,8192,16,2,128,(None,1,8)); go(1,16384,16,16,128,(None,)); go(1,16384,16,2,128,(None,1))
