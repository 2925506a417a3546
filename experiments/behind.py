from pathlib import Path
from rooftile.workbench import ledger
R=Path('records'); t=ledger.latest(R)
for d,a,b in ledger.chosen_and_fastest(R):
    if 'h100' not in d: continue
    rs=t[(d,a.op,a.case)]
    peers={r.kernel[5:]:r.us[1] for r in rs if r.kernel.startswith('peer.') and r.us and r.status=='passed'}
    cp=peers.pop('copy',None)
    p=min(peers,key=peers.get) if peers else None
    print(f"{a.op:12s} {a.case[:40]:40s} chosen {a.kernel:22s} {a.us[1]:8.2f} fastest {b.kernel:20s} {b.us[1]:8.2f} noise {a.extra.get('noise',0):.3f} copy {cp/a.us[1] if cp else 0:.3f} " + (f"{p} {peers[p]/a.us[1]:.3f}" if p else ''))
