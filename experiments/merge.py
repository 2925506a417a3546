import sys,tarfile
from pathlib import Path
for t in sys.argv[1:]:
    with tarfile.open(t) as f:
        for m in f.getmembers():
            if not m.isfile() or not m.name.endswith('.jsonl'): continue
            p=Path(m.name); new=f.extractfile(m).read().decode().splitlines(); old=p.read_text().splitlines() if p.exists() else []
            have=set(old); add=[l for l in new if l not in have]
            keep=set(new)
            gone=[l for l in old if l not in keep]
            if add: print(p,'+',len(add),'not in theirs',len(gone)); p.write_text("\n".join(old+add)+"\n")
