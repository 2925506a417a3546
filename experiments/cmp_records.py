import json,statistics as s,subprocess,sys
def load(rev,op):
    d={}
    t=subprocess.run(['git','show',f'{rev}:records/nvidia-h200/{op}.jsonl'],capture_output=True,text=True).stdout
    for l in t.splitlines():
        r=json.loads(l)
        if r.get('us'): d[(r['op'],r['case'],r['kernel'])]=(s.median(r['us']),r['environment'].get('commit'),r['config'])
    return d
worst=[]
ops=[x.split('/')[-1][:-6] for x in subprocess.run(['git','ls-files','records/nvidia-h200'],capture_output=True,text=True).stdout.split()]
for op in ops:
    a,b=load('32e656ca',op),load('HEAD',op)
    for k,(u,c,cfg) in b.items():
        if k in a and a[k][1]!=c and not k[2].startswith('peer.'):
            pc=(k[0],k[1],'peer.copy')
            ca=a.get(pc,(None,))[0]; cb=b.get(pc,(None,))[0]
            worst.append((u/a[k][0],k,a[k][0],u,ca,cb,a[k][2]==cfg))
worst.sort(reverse=True)
for w in worst[:45]: print(f'{w[0]:.3f}',w[1][0],w[1][1][:62],w[1][2],round(w[2],1),round(w[3],1),'copy',w[4] and round(w[4],1),w[5] and round(w[5],1),'' if w[6] else 'cfg')
