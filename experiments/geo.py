import subprocess,math,re
o=subprocess.run([".venv/bin/python",".gpu/att2.py","h100-80gb-hbm3","attention"],capture_output=True,text=True).stdout
r=[]; 
for l in o.splitlines():
    if re.search(r"(B16_T1024|B4_T4096|B1_T16384)_S\d+_H(16|32)_D(64|128)-",l) : r.append((float(l.split()[-2]),l))
print(len(r),"geo",math.exp(sum(math.log(x) for x,_ in r)/len(r)),"min",min(r)[0], min(r)[1][:80])
b=[x for x,l in r if "backward" in l]; f=[x for x,l in r if "backward" not in l]
for n,v in (("bwd",b),("fwd",f)): print(n,len(v),math.exp(sum(map(math.log,v))/len(v)),min(v))
