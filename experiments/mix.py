import re,subprocess,sys,collections
cuobj=sys.argv[1]
for f in sys.argv[2:]:
    s=subprocess.run([cuobj,'-sass',f],capture_output=True,text=True).stdout
    ins=[]
    for l in s.splitlines():
        m=re.match(r'\s+/\*([0-9a-f]{4,5})\*/\s+(.*?)\s*;',l)
        if m: ins.append((int(m[1],16),m[2]))
    at={a:i for i,(a,_) in enumerate(ins)}
    print(f,len(ins))
    loops=[]
    for i,(a,t) in enumerate(ins):
        m=re.search(r'BRA (0x[0-9a-f]+)',t)
        if m and int(m[1],16)<a: loops.append((at.get(int(m[1],16)),i))
    for b,i in loops:
        body=[x for _,x in ins[b:i+1]]
        c=collections.Counter(re.sub(r'^@!?U?P\d+ ','',x).split()[0].split('.')[0] for x in body)
        if c['HGMMA'] and len(body)<1300 and not any(b<=b2 and i2<i and (b,i)!=(b2,i2) for b2,i2 in loops):
            print(' ',hex(ins[b][0]),len(body),dict(c.most_common(14)))
