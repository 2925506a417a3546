"""Heads of keys dealt out together in windows and packed sequences: times of cuda.v5_hopper, all in turn."""
import functools, tempfile, torch
from pathlib import Path
from rooftile.core import timing
from rooftile.cuda.source import Source
from rooftile.ops.attention import banded_kernels as bk
from rooftile.workbench.explain import operator
RULE="left_ < 0 && right_ >= 0 && !ORDERED ? max(2, (1 << 15) / max(T, 1)) : 1"
text=bk.V5.path.read_text(); assert text.count(RULE)==1
def changed(n):
    folder=Path(tempfile.mkdtemp()); p=folder/bk.V5.path.name; p.write_text(text.replace(RULE,str(n))); return Source(p)
sources={'now':bk.V5,**{f't{n}':changed(n) for n in (1,2,3,4,8,16)}}
def timed(kernel,call,source):
    bk.V5=source; r=kernel.run(*call.values()); bk.V5=sources['now']; return r
for name in ('attention_options','attention_varlen'):
    op=operator(name+'_backward'); k=[k for k in op.kernels if k.name=='cuda.v5_hopper'][0]
    for case in op.spec.cases:
        if 'bench' not in case.use: continue
        call=op.spec.draw(case,0,torch.device('cuda'))
        if k.refuse(call): continue
        vs={n:functools.partial(timed,k,call,s) for n,s in sources.items()}
        c=timing.compare(vs,torch.device('cuda'),budget_ms=80)
        print(case.id[:60],case.id[-60:],'noise %.3f'%c.noise,{n:f'{t.us:.0f}' for n,t in c.timings.items()},flush=True)
