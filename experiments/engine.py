import sys; sys.path.insert(0,'/tmp/serve')
import torch, math, random, time
from oracle import oracle
from rooftile import attention_decode, concat_kv, rope, rope_table, attention, attention_varlen
F8=torch.float8_e4m3fn
def run(seed, steps=14):
    r=random.Random(seed); torch.manual_seed(seed)
    G=r.choice([1,2]); R=r.choice([1,3,4]); H=G*R; D=r.choice([16,24,32]); page=r.choice([16,32,48]); pages=24; N=6; dt=r.choice([torch.float32,torch.bfloat16])
    f8=r.random()<.4; cd=F8 if f8 else dt
    lay=r.choice(["layers","kv","heads"]); cap=r.choice([0.,5.]); window=r.choice([None,None,1,7,20]); sinks=torch.randn(H) if r.random()<.4 else None
    inter=r.random()<.5
    if lay=="layers": buf=torch.full((2,2,pages,page,G,D),float('nan')).to(cd); kc,vc=buf[1,0],buf[1,1]
    elif lay=="kv": buf=torch.full((pages,page,2,G,D),float('nan')).to(cd); kc,vc=buf[:,:,0],buf[:,:,1]
    else: buf=torch.full((2,pages,G,page,D),float('nan')).to(cd); kc,vc=buf[0].transpose(1,2),buf[1].transpose(1,2)
    ks,vs=(torch.rand(G)+.5,torch.rand(G)+.5) if f8 else (None,None)
    cos,sin=rope_table(N*page,D)
    cos2,sin2=cos.double(),sin.double()
    def turn(x,pos):  # x [T,h,D]
        c,s=cos2[pos][:,None],sin2[pos][:,None]; x=x.double()
        if inter: a,b=x[...,::2],x[...,1::2]
        else: a,b=x[...,:D//2],x[...,D//2:]
        ya,yb=a*c-b*s,a*s+b*c
        return torch.stack([ya,yb],-1).flatten(-2) if inter else torch.cat([ya,yb],-1)
    free=list(range(pages)); r.shuffle(free)
    seqs=[]
    def store(seq,k,v,at):
        for j in range(len(k)):
            p=at+j
            while p//page>=len(seq['pages']): seq['pages'].append(free.pop())
            m=seq['pages'][p//page]
            kk,vv=k[j],v[j]
            if f8: kk,vv=(kk.float()/ks[:,None]),(vv.float()/vs[:,None])
            kc[m,p%page]=kk.to(cd); vc[m,p%page]=vv.to(cd)
    tol=dict(rtol=2e-2,atol=2e-2) if dt==torch.bfloat16 else dict(rtol=1e-4,atol=1e-4)
    for step in range(steps):
        # admit
        while len(seqs)<3 and r.random()<.6 and len(free)>=N:
            s=dict(pages=[],n=0); todo=r.randint(1,page*3)
            while todo:
                c=min(todo,r.choice([1,5,16,17,33])); 
                q=torch.randn(1,c,H,D).to(dt); k=torch.randn(1,c,G,D).to(dt); v=torch.randn(1,c,G,D).to(dt)
                pos=torch.arange(s['n'],s['n']+c)
                tq,tk=rope(q,k,cos,sin,pos,interleaved=inter,layout="BTHD")
                torch.testing.assert_close(tk[0].double(),turn(k[0],pos),**tol)
                store(s,tk[0],v[0],s['n']); s['n']+=c; todo-=c
                n=s['n']
                ids=torch.tensor(s['pages'])
                K=kc[ids].flatten(0,1)[:n][None].to(dt) if not f8 else (kc[ids].float().flatten(0,1)[:n]*ks[:,None])[None].to(dt)
                V=vc[ids].flatten(0,1)[:n][None].to(dt) if not f8 else (vc[ids].float().flatten(0,1)[:n]*vs[:,None])[None].to(dt)
                got,lse=attention(tq,K,V,causal=True,window=None if window is None else (window-1,0),softcap=cap,sinks=sinks,return_lse=True)
                want,wl=oracle(tq,K,V,torch.tensor([n]),None,D**-.5,window or 0,cap,sinks,None,None)
                torch.testing.assert_close(got.double(),want,**tol); torch.testing.assert_close(lse.double(),wl,**tol)
                cuq=torch.tensor([0,c],dtype=torch.int32); cuk=torch.tensor([0,n],dtype=torch.int32)
                g2=attention_varlen(tq[0],K[0],V[0],cuq,cuk,c,n,causal=True,window=None if window is None else (window-1,0),softcap=cap,sinks=sinks)
                torch.testing.assert_close(g2.double(),want[0],**tol)
                if c<=16:
                    tb=torch.tensor([s['pages']+[-5]],dtype=torch.int32)
                    g3=attention_decode(tq,kc,vc,torch.tensor([n],dtype=torch.int32),block_table=tb,window=window,softcap=cap,sinks=sinks,k_scale=ks,v_scale=vs)
                    torch.testing.assert_close(g3.double(),want,**({} if not f8 else {}) ,**(tol if not(f8 and dt==torch.bfloat16) else dict(rtol=4e-2,atol=4e-2)))
            seqs.append(s)
        T=r.choice([1,1,2,4,9])
        B=len(seqs)
        room=[s for s in seqs if s['n']+T>N*page]
        for s in room: free+=s['pages']; seqs.remove(s)
        B=len(seqs)
        if len(free)<B: s=seqs.pop(); free+=s['pages']; B-=1
        q=torch.randn(B,T,H,D).to(dt); k=torch.randn(B,T,G,D).to(dt); v=torch.randn(B,T,G,D).to(dt)
        base=torch.tensor([s['n'] for s in seqs],dtype=torch.int32)
        pos=base.long()[:,None]+torch.arange(T)
        tq,tk=rope(q,k,cos,sin,pos,interleaved=inter,layout="BTHD")
        for b,s in enumerate(seqs): store(s,tk[b],v[b],s['n'])
        bt=torch.full((4,N+3),2**30,dtype=torch.int32)
        for b,s in enumerate(seqs): bt[b,:len(s['pages'])]=torch.tensor(s['pages'],dtype=torch.int32)
        bt=bt[:B,:N]
        L=base+T
        got,lse=attention_decode(tq,kc,vc,L,block_table=bt,window=window,softcap=cap,sinks=sinks,k_scale=ks,v_scale=vs,return_lse=True)
        want,wl=oracle(tq,kc,vc,L,bt,D**-.5,window or 0,cap,sinks,ks,vs)
        torch.testing.assert_close(got.double(),want,**tol); torch.testing.assert_close(lse.double(),wl,**tol)
        for s in seqs: s['n']+=r.randint(1,T)   # rejected ones are overwritten
        if seqs and r.random()<.2: s=seqs.pop(r.randrange(len(seqs))); free+=s['pages']
t0=time.time(); seed=0
while time.time()-t0<float(sys.argv[1]):
    try: run(seed)
    except Exception as e:
        import traceback; print("SEED",seed,type(e).__name__,str(e)[:500]); print(traceback.format_exc()[-700:])
    seed+=1
print("seeds",seed)
