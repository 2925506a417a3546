"""Loads whose value goes round the loop (asked a turn ahead) but that stand near its end: sunk. Over the cubins in the cache."""
import sys,re,json,subprocess,glob
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
dis=glob.glob('/work/main/.venv/lib/python3*/site-packages/triton/backends/nvidia/bin/nvdisasm')[0]
seen={}
for p in sorted(Path('/root/.cache/rooftile/cuda').glob('*.cubin'), key=lambda p:-p.stat().st_mtime):
    with p.open('rb') as f: head=f.readline()
    try: s=json.loads(head).get('symbol')
    except Exception: continue
    k=(p.stem.rsplit('-',1)[0],s)
    if s and k not in seen: seen[k]=p
def regs(x):
    x=re.sub(r'^@!?U?P\d+ ','',x)
    parts=x.split(' ',1)
    return parts[1] if len(parts)>1 else ''
def one(i):
    (stem,s),p=i
    body=p.read_bytes(); body=body[body.find(b'\x7fELF'):]
    q=Path(f'/tmp/ds/k_{p.stem[-30:]}.cubin'); q.write_bytes(body)
    out=subprocess.run([dis,'-c',str(q)],capture_output=True,text=True).stdout; q.unlink()
    if 'sm_90' not in out[:3000]: return None
    lab={};ins=[]
    for l in out.splitlines():
        m=re.match(r'^(\.L\S+):',l)
        if m: lab[m.group(1)]=len(ins)
        m=re.search(r'/\*[0-9a-f]{4,5}\*/\s+(.*?);',l)
        if m: ins.append(m.group(1))
    res=[]
    for n,x in enumerate(ins):
        m=re.search(r'BRA\S*.*`\((\.L\S+)\)',x)
        if not(m and m.group(1) in lab and lab[m.group(1)]<=n): continue
        a=lab[m.group(1)]
        if n-a<80: continue
        b=ins[a:n+1]
        for k,y in enumerate(b):
            w=re.search(r'\bLDG\.\S* (R\d+), ',y)
            if not w: continue
            r=w.group(1); pat=re.compile(r'\b'+r+r'\b')
            after=[j for j in range(k+1,len(b)) if pat.search(regs(b[j]))]
            # through a MOV at the loop's end, or untouched until the next turn
            if after and not re.match(r'(IMAD\.MOV|MOV)',re.sub(r'^@!?P\d+ ','',b[after[0]])): continue
            before=[j for j in range(k) if pat.search(regs(b[j]))]
            if not after and not before: continue
            d=(after[0]-k) if after else len(b)-k+before[0]
            if k>0.5*len(b) and d<0.5*len(b): res.append((len(b),k,d,y[:40]))
    return (stem,s,res) if res else None
with ThreadPoolExecutor(1) as ex:
    for r in ex.map(one,seen.items()):
        if r: print(r[0],r[1][:110],r[2][:3],flush=True)
