"""rooftile bench of forwards alone: python forward.py PEERS WITHIN NAMES..."""
import sys
from pathlib import Path
from rich.console import Console
from rooftile.workbench import bench, gatekeeper
from rooftile.workbench.explain import operator
gatekeeper.named = lambda names: [operator(n) for n in names]
bench.called_cases = lambda *_: []
if __name__ == "__main__":
    R = Path("records")
    peers, within, *names = sys.argv[1:]
    made, left = bench.bench(names, peers.split(","), "cuda", "", Console(stderr=True), R, 15, None, float(within), R)
    by = {}
    for r in made:
        if r.us: by.setdefault((r.op, r.case), {})[r.kernel] = r.us[1]
    for (op, case), t in by.items():
        own = {k: v for k, v in t.items() if not k.startswith("peer.")}; peer = {k[5:]: v for k, v in t.items() if k.startswith("peer.") and k != "peer.copy"}
        k = min(own, key=own.get); p = min(peer, key=peer.get) if peer else None
        first = next(iter(own))
        print(f"{op} {case[:44]:44s} {k} {own[k]:.2f} (first {first} {own[first]:.2f}) copy/ours {t.get('peer.copy', float('nan'))/own[k]:.3f} " + (f"best {p} {peer[p]:.2f} x{peer[p]/own[k]:.3f}" if p else ""))
    print("left", len(left), left[:3])
