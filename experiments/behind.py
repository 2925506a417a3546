import json,sys,glob,os
att={'attention','attention_varlen','attention_options','rotary_attention','attention_qkvpacked','attention_decode','attention_decode_e4m3','gemm'}
for dev in ("h200","h100-80gb-hbm3"):
  print("==",dev); n=0; import math; lg=[]
  for f in sorted(glob.glob(f"records/nvidia-{dev}/*.jsonl")):
    op=os.path.basename(f)[:-6]
    if op in att or '.' in op: continue
    last={}
    for l in open(f):
        d=json.loads(l); last[(d['op'],d['case'],d['kernel'])]=d
    by={}
    for (o,c,k),d in last.items(): by.setdefault((o,c),{})[k]=d
    for (o,c),ks in by.items():
        t={k:(d.get('us') or [0,0,0])[1] for k,d in ks.items()}
        p={k:v for k,v in t.items() if k.startswith('peer.') and v and 'copy' not in k}; u={k:v for k,v in t.items() if not k.startswith('peer.') and v}
        if p and u and 'host' not in c:
            bp=min(p,key=p.get); bu=min(u,key=u.get); r=p[bp]/u[bu]; n+=1; lg.append(math.log(r))
            if r<0.98: print(o,c[:70],bu,u[bu],bp,p[bp],'%.3f'%r)
  print(n, 'geo', math.exp(sum(lg)/len(lg)))
