"""uses.py FILE INSTANCE: for each LDG, LDS.128 run: distance in instructions to the first use of what it loads (linear order)"""
import sys,re
from sass import text
m,out=text(sys.argv[1],sys.argv[2])
ins=[]
for l in out.splitlines():
    if re.match(r'^\.L\S+:',l): ins.append(('L',l.strip())); continue
    q=re.search(r'/\*([0-9a-f]{4,5})\*/\s+(.*?);',l)
    if q: ins.append((q.group(1),q.group(2)))
pat=sys.argv[3] if len(sys.argv)>3 else r'LDG\.'
for n,(a,x) in enumerate(ins):
    if a=='L' or not re.search(pat,x): continue
    w=re.search(pat+r'\S* (R\d+)',x)
    if not w: continue
    r=int(w.group(1)[1:]); wid=4 if '.128' in x else 2 if 'E.64' in x else 1
    regs={f'R{r+i}' for i in range(wid)}
    for k in range(n+1,len(ins)):
        if ins[k][0]=='L': continue
        ops=ins[k][1]
        if set(re.findall(r'\bR\d+\b',ops))&regs:
            print(a,x[:70],'| +%d'%(k-n),ins[k][0],ins[k][1][:80]); break

lab={a and x:n for n,(a,x) in enumerate(ins) if a=='L'}
for n,(a,x) in enumerate(ins):
    q=re.search(r'BRA\S*.*`\((\.L\S+)\)',x)
    if q and q.group(1)+':' in lab and lab[q.group(1)+':']<n and n-lab[q.group(1)+':']>100:
        s=lab[q.group(1)+':']; dep=[k-s for k in range(s,n) if 'DEPBAR' in ins[k][1] or 'SYNCS' in ins[k][1]]
        for k in range(s,n):
            if re.search(r'LDG\.E\S* R\d+',ins[k][1]):
                r=re.search(r'LDG\.E\S* (R\d+)',ins[k][1]).group(1)
                u=[(j-s) for j in list(range(k+1,n))+list(range(s,k)) if re.search(r'[ ,]-?\|?'+r+r'\b(?!\.64\])',ins[j][1].split(' ',1)[1] if ' ' in ins[j][1] else '')]
                print('loop of',n-s,'LDG at',k-s,r,'first touched at',u[:1],'waits for rows at',dep[:3])
