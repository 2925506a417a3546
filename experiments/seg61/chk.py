import sys,subprocess,re,glob
from pathlib import Path
from rooftile.cuda.source import Source
from rooftile.cuda.compile import compiled
dis=glob.glob('/work/main/.venv/lib/python3*/site-packages/triton/backends/nvidia/bin/nvdisasm')[0]
def bad(cubin):
    Path('/tmp/ds/seg61.cubin').write_bytes(cubin)
    out=subprocess.run([dis,'-c','/tmp/ds/seg61.cubin'],capture_output=True,text=True).stdout
    fn='';hits=[]
    for l in out.splitlines():
        if re.search(r'desc\[UR\d*[13579]\]',l) or re.search(r'\+UR\d+\].*desc\[',l) or 'BPT' in l: hits.append(re.sub(r'\s+',' ',l.split('*/')[1]).strip() if '*/' in l else l)
    return hits
def check(path,inst,arch='sm_90a'):
    c=compiled(Source(Path(path).resolve()),inst,arch); h=bad(c.cubin)
    print(Path(path).stem,inst,'regs',c.registers,'spill',c.spill_bytes,'BAD' if h else 'ok',len(h),h[:2],flush=True)
if __name__=='__main__':
    for i in sys.argv[2:]: check(sys.argv[1],i)
