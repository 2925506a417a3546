import json,sys
for dev in sys.argv[1].split(","):
  for spec in sys.argv[2:]:
    op,sub=spec.split(":"); 
    last={}
    for l in open(f"records/nvidia-{dev}/{op}.jsonl"):
        d=json.loads(l); last[(d['op'],d['case'],d['kernel'])]=d
    by={}
    for (o,c,k),d in last.items():
        if sub in c: by.setdefault((o,c),[]).append(((d.get('us') or [0,0,0])[1],k,d.get('config')))
    for (o,c),v in by.items(): print(dev[:4],o,c[:60],sorted([x for x in v if x[0]],key=lambda x:x[0]))
