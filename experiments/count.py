import json,collections,sys
d=json.load(open('/tmp/st.json'))
c=collections.defaultdict(lambda:[0,0,0,set()])
for r in d:
    if r['device']!='nvidia-h200': continue
    x=c[r['op']]
    if r['us'] is None: x[2]+=1
    elif r['stale']: x[0]+=1; x[3].add(r['case'])
    else: x[1]+=1; x[3].add(r['case'])
for k,v in sorted(c.items()): print(f"{k:36} stale {v[0]:4} unsteady {v[1]:4} none {v[2]:4} cases {len(v[3])}")
print(sum(v[0] for v in c.values()), sum(v[1] for v in c.values()), sum(len(v[3]) for v in c.values()))
