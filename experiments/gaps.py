import json,sys,collections
rows,spans=json.load(open(f"{sys.argv[1]}"))
short=lambda n: n.replace("void ","").split("<")[0].split("(")[0][:40] if "nvjet" not in n else n[:48]
# union exclusive: time each kernel extends the frontier
end=spans[0][0]; excl=collections.defaultdict(lambda:[0,0.0,0.0]); gaps=collections.defaultdict(lambda:[0,0.0]); prev=None
for a,b,n in spans:
    k=short(n); e=excl[k]; e[0]+=1; e[2]+=b-a
    if a>end and prev: g=gaps[(prev,k)]; g[0]+=1; g[1]+=a-end
    e[1]+=max(0,b-max(a,end)); 
    if b>end: end=b; prev=k
print("total",end-spans[0][0])
for k,(n,x,s) in sorted(excl.items(),key=lambda t:-t[1][1])[:34]: print(f"{x:9.1f} excl {s:9.1f} sum {n:4d}  {k}")
print("gaps", sum(g[1] for g in gaps.values()), sum(g[0] for g in gaps.values()))
for k,(n,x) in sorted(gaps.items(),key=lambda t:-t[1][1])[:30]: print(f"{x:8.1f} us {n:4d} {k}")
