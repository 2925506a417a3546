import sys,re,json,subprocess,glob,time
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
dis=glob.glob('/work/main/.venv/lib/python3*/site-packages/triton/backends/nvidia/bin/nvdisasm')[0]
seen={}
for p in sorted(Path('/root/.cache/rooftile/cuda').glob('*.cubin'), key=lambda p:-p.stat().st_mtime):
    with p.open('rb') as f: head=f.readline()
    try: info=json.loads(head)
    except Exception: continue
    s=info.get('symbol')
    if not s or s in seen: continue
    if not re.search(r'add_|join|shares|root|parts|column|ordered|finish|sums',s): continue
    seen[s]=p
    if len(seen)>=1500: break
def one(i):
    s,p=i
    body=p.read_bytes(); body=body[body.find(b'\x7fELF'):]
    q=Path(f'/tmp/ds/l_{p.stem[:40]}.cubin'); q.write_bytes(body)
    out=subprocess.run([dis,'-c',str(q)],capture_output=True,text=True).stdout; q.unlink()
    if 'sm_90' not in out[:3000]: return None
    lines=out.splitlines(); lab={}; ins=[]
    for l in lines:
        m=re.match(r'^(\.L\S+):',l)
        if m: lab[m.group(1)]=len(ins)
        m=re.search(r'/\*[0-9a-f]{4,5}\*/\s+(.*?);',l)
        if m: ins.append(m.group(1))
    res=[]
    for n,x in enumerate(ins):
        m=re.search(r'BRA\S*.*`\((\.L\S+)\)',x)
        if m and m.group(1) in lab and lab[m.group(1)]<=n:
            b=ins[lab[m.group(1)]:n+1]
            seq=''.join('L' if 'LDG' in y and 'LDGSTS' not in y else 'F' if re.match(r'(@!?U?P\d+ )?(FADD|FFMA|DADD)',y) else '' for y in b)
            if re.search(r'(LF+){3,}',seq): res.append((len(b),seq[:60]))
    return s,res
with ThreadPoolExecutor(2) as ex:
    for r in ex.map(one,seen.items()):
        if r and r[1]: print(r[0][:120],r[1])
