import json,collections
from pathlib import Path
import sys
run={}
c=collections.defaultdict(dict)
for p in sorted(Path('records/nvidia-h200').glob('*.jsonl')):
    for l in p.read_text().splitlines():
        if '"host_us"' not in l: continue
        r=json.loads(l); c[r['op'],r['case']][r['kernel']]=(r['extra']['host_us'],r['extra'].get('layer_norm_us'))
out=[]
for k,v in c.items():
    ours=[x for n,x in v.items() if not n.startswith('peer.')]; peers=[(x[0],n) for n,x in v.items() if n.startswith('peer.')]
    if not ours or not peers: continue
    o=min(ours); p=min(peers); out.append((o[0]/p[0],o[0],p,o[1],k))
out.sort(reverse=True)
print(sum(o[0]<=1.1 for o in out),'of',len(out))
for o in out[:28]: print(f"{o[0]:.3f} {o[1]:.2f} {o[2][0]:.2f} {o[2][1]} ln {o[3]:.1f} {o[4][0]} {o[4][1][:60]}")
