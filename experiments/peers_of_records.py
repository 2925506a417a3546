import json,statistics as s,glob
from collections import defaultdict
d=defaultdict(dict)
for f in glob.glob('records/nvidia-h200/*.jsonl'):
    for l in open(f):
        r=json.loads(l)
        if not r.get('us') or '.' in r['op']: continue
        d[(r['op'],r['case'])][r['kernel']]=s.median(r['us'])
rows=[]
for k,v in d.items():
    ours={n:u for n,u in v.items() if not n.startswith('peer.')}
    peers={n:u for n,u in v.items() if n.startswith('peer.') and n!='peer.copy'}
    if ours and peers:
        o=min(ours,key=ours.get);p=min(peers,key=peers.get)
        rows.append((peers[p]/ours[o],k,o,ours[o],p,peers[p],v.get('peer.copy')))
rows.sort(key=lambda r:r[0])
for r in rows[:28]: print(f'{r[0]:.3f} {r[1][0]} {r[1][1][:80]} {r[2]} {r[3]:.2f} {r[4]} {r[5]:.2f} copy {r[6]}')
import sys
for k,v in d.items():
    if k[0] in sys.argv[1:]: print(k[0],k[1][:70],{n:round(u,1) for n,u in sorted(v.items(),key=lambda i:i[1])})
