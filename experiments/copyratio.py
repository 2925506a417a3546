import json,sys,glob
dev=sys.argv[1]
for op in sys.argv[2:]:
    last={}
    for l in open(f"records/nvidia-{dev}/{op}.jsonl"):
        d=json.loads(l)
        if d.get('us'): last[(d['op'],d['case'],d['kernel'])]=d
    by={}
    for (o,c,k),d in last.items(): by.setdefault((o,c),{})[k]=d
    for (o,c),ks in by.items():
        t={k:d['us'][1] for k,d in ks.items()}
        cp=t.get('peer.copy'); u={k:v for k,v in t.items() if not k.startswith('peer.')}
        p={k:v for k,v in t.items() if k.startswith('peer.') and k!='peer.copy'}
        if cp and u:
            bu=min(u,key=u.get); print(o[:24],c[:60],bu,u[bu],'copy',cp,'%.3f'%(cp/u[bu]), 'peer %.3f'%(min(p.values())/u[bu]) if p else '')
