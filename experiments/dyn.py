"""Instructions of the quick path: from the label before the first LDS.128 round the loop, taken as full blocks."""
import re,sys
L=[re.sub(r"\s+"," ",l).strip() for l in open(sys.argv[1]) if re.search(r"/\*[0-9a-f]{4,5}\*/",l) or l.strip().startswith(".L")]
lab={l.split(":")[0]:i for i,l in enumerate(L) if l.startswith(".L")}
k=next(i for i,l in enumerate(L) if "LDS.128" in l)
while not L[k].startswith(".L"): k-=1
top=k; n=0; i=top; seen=[]
take={int(x) for x in sys.argv[2].split(",")} if len(sys.argv)>2 and sys.argv[2] else set()
steps=0
while steps<3000:
    steps+=1
    l=L[i]
    if l.startswith(".L"): i+=1; continue
    n+=1
    m=re.search(r"BRA (?:\w+, )?`\((\.L_x_\d+)\)",l)
    if m:
        to=lab[m[1]]; cond="@" in l
        if to==top: break
        seen.append((i,n,l[:60],"taken" if (i in take or not cond) else ""))
        if i in take or not cond: i=to; continue
    i+=1
for s in seen: print(*s)
print("instructions",n, n/32)
