import json,sys,collections
d=json.load(open('/tmp/rec.json'))
ops=sys.argv[1].split(','); sub=sys.argv[2] if len(sys.argv)>2 else ''
c=collections.defaultdict(dict)
for r in d:
    if r['device']!='nvidia-h200' or not r.get('us') : continue
    if ops!=['all'] and r['op'] not in ops: continue
    if sub not in r['case']: continue
    c[r['op'],r['case']][r['kernel']]=(r['us'],r['stale'])
for (o,k),v in sorted(c.items()):
    ours={n:x for n,x in v.items() if not n.startswith('peer.')}
    peers={n:x for n,x in v.items() if n.startswith('peer.')}
    if not ours or not peers: continue
    b=min(ours,key=lambda n:ours[n][0]); p=min(peers,key=lambda n:peers[n][0])
    print(f"{peers[p][0]/ours[b][0]:6.3f} {ours[b][0]:9.2f}{'*' if ours[b][1] else ' '} {b:22} {p:14} {peers[p][0]:9.2f}{'*' if peers[p][1] else ' '} {o[:26]:26} {k[:70]}")
