import json,sys
for dev in sys.argv[1].split(","):
  for op in sys.argv[2:]:
    last={}
    for l in open(f"records/nvidia-{dev}/{op}.jsonl"):
        d=json.loads(l); last[(d['op'],d['case'],d['kernel'])]=d
    by={}
    for (o,c,k),d in last.items(): by.setdefault((o,c),{})[k]=d
    for (o,c),ks in by.items():
        t={k:(d.get('us') or [0,0,0])[1] for k,d in ks.items()}
        p={k:v for k,v in t.items() if k.startswith('peer.') and v and 'copy' not in k}; u={k:v for k,v in t.items() if not k.startswith('peer.') and v}
        if p and u:
            bp=min(p,key=p.get); bu=min(u,key=u.get); print(dev[-5:],o,c[:60],bu,u[bu],bp,p[bp],'%.3f'%(p[bp]/u[bu]), ks[bu]['environment']['commit'])
