import sys,subprocess,re,collections
sys.path.insert(0,'/work/wt-sums64/src')
from pathlib import Path
from rooftile.cuda.compile import compiled
from rooftile.cuda.source import Source
dis=next(iter(__import__('glob').glob('/work/main/.venv/lib/python3*/site-packages/triton/backends/nvidia/bin/nvdisasm')))
def show(path,inst,arch='sm_90a',full=False):
    c=compiled(Source(Path(path)),inst,arch)
    open('/tmp/ds/s64_y.cubin','wb').write(c.cubin)
    out=subprocess.run([dis,'-c','/tmp/ds/s64_y.cubin'],capture_output=True,text=True).stdout
    lines=[];labels={}
    for l in out.splitlines():
        m=re.match(r'\s*(\.L_x_\d+):',l)
        if m: labels[m.group(1)]=len(lines); continue
        m=re.match(r'\s*/\*[0-9a-f]+\*/\s+(.*?);',l)
        if m: lines.append(m.group(1))
    print(inst,'regs',c.registers,'spill',c.spill_bytes,'instrs',len(lines))
    # loops: backward branches
    for i,l in enumerate(lines):
        m=re.search(r'BRA\S*\s.*?`?\(?(\.L_x_\d+)',l)
        if m and m.group(1) in labels and labels[m.group(1)]<=i:
            a=labels[m.group(1)]; ops=collections.Counter(re.sub(r'^@!?U?P\w+\s+','',x).split()[0].split('.')[0] for x in lines[a:i+1])
            print('  loop',a,i,'n=',i+1-a,'MUFU',ops['MUFU'],dict(ops.most_common(14)))
    if full: open('/tmp/ds/s64_y.sass','w').write('\n'.join(f'{n} '+(next((k for k,v in labels.items() if v==n),''))+' '+x for n,x in enumerate(lines)))
if __name__=='__main__': show(sys.argv[1],sys.argv[2],full=len(sys.argv)>3)
