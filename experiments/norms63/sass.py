"""sass.py FILE INSTANCE [-d]: registers, spills, instructions of each loop by kind"""
import sys,re,subprocess,glob,collections
from pathlib import Path
from rooftile.cuda import compile as C
from rooftile.cuda.source import Source
dis=glob.glob('/work/main/.venv/lib/python3*/site-packages/triton/backends/nvidia/bin/nvdisasm')[0]
def text(path,inst,arch="sm_90a"):
    m=C.compiled(Source(Path(path).resolve()),inst,arch)
    q=Path(f'/tmp/ds/s_{abs(hash((path,inst)))}.cubin'); q.write_bytes(m.cubin)
    out=subprocess.run([dis,'-c',str(q)],capture_output=True,text=True).stdout; q.unlink()
    return m,out
def kind(x):
    x=re.sub(r'^@!?U?P\S+ ','',x); return x.split()[0].rstrip(';')
def loops(out):
    lab={};ins=[]
    for l in out.splitlines():
        m=re.match(r'^(\.L\S+):',l)
        if m: lab[m.group(1)]=len(ins)
        m=re.search(r'/\*[0-9a-f]{4,5}\*/\s+(.*?);',l)
        if m: ins.append(m.group(1))
    for n,x in enumerate(ins):
        m=re.search(r'BRA\S*.*`\((\.L\S+)\)',x)
        if m and m.group(1) in lab and lab[m.group(1)]<=n and n-lab[m.group(1)]>8:
            yield ins[lab[m.group(1)]:n+1]
    yield ins
if __name__=="__main__":
    m,out=text(sys.argv[1],sys.argv[2])
    print("registers",m.registers,"spill",m.spill_bytes,"static",m.shared_bytes)
    if "-d" in sys.argv: print(out)
    for b in loops(out):
        c=collections.Counter(kind(x).split('.')[0] for x in b)
        f=collections.Counter(kind(x) for x in b if kind(x).split('.')[0] in("IMAD","LDS","LDG","LDGSTS","STG","BAR","SHFL","LOP3","ISETP"))
        print(len(b),dict(c.most_common(26))); print("   ",dict(f.most_common(20)))
