"""turns.py PLAN.json: {"trees": {name: src}, "env": {name: {...}}, "phases": [...]}; a phase: {"trees": [...], "models": [...], "ops": [[...]], "rounds": n}."""
import json, os, subprocess, sys, time, statistics, threading
plan = json.load(open(sys.argv[1])); out = os.environ.get("OUT", "/tmp"); here = os.path.dirname(os.path.abspath(__file__)); t0 = time.time(); lines = []
def say(s):
    print(s, flush=True); lines.append(s); open(f"{out}/{plan.get('name','turns')}.txt", "w").write("\n".join(lines) + "\n")
class Worker:
    def __init__(self, name):
        env = {**os.environ, **plan.get("env", {}).get(name, {}), "PYTHONPATH": plan["trees"][name] + ":" + os.environ.get("PYTHONPATH", "")}
        self.name = name; self.p = subprocess.Popen([sys.executable, f"{here}/worker.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(f"{out}/{plan.get('name','turns')}-{name}.err", "a"), env=env, text=True)
    def send(self, **m): self.p.stdin.write(json.dumps(m) + "\n"); self.p.stdin.flush()
    def read(self):
        l = self.p.stdout.readline()
        return json.loads(l) if l else "FAILED died"
    def ask(self, **m): self.send(**m); return self.read()
for ph in plan["phases"]:
    ws = [Worker(n) for n in ph["trees"]]
    for o in ph.get("ops", []):
        for w in ws: w.send(do="warm", op=o)
        for w in ws:
            r = w.read()
            if r: say(f"{w.name} {o}: {r}")
    say(f"({time.time()-t0:.0f} s)")
    for o in ph.get("ops", []):
        got = {w.name: [] for w in ws}
        for i in range(ph.get("op_rounds", 4)):
            for w in (ws if i % 2 == 0 else ws[::-1]): got[w.name].append(w.ask(do="op", op=o, ms=ph.get("ms", 30.0)))
        say(f"{o[0]} {o[1][:20]:20s} {str(o[2:])[:80]:80s} " + "  ".join(f"{n} {statistics.median(v):8.1f} [{min(v):.1f}]" if not any(isinstance(x, str) for x in v) else f"{n} {v[0]}" for n, v in got.items()))
    for w in ws: w.ask(do="drop")
    for m in ph.get("models", []):
        for w in ws: w.send(do="build", model=m)
        for w in ws: say(f"{w.name} {m}: {w.read()} GiB at most  ({time.time()-t0:.0f} s)")
        got = {w.name: [] for w in ws}; loss = {}
        for w in ws * 2: w.ask(do="step", model=m, steps=ph["steps"])  # to the board's power
        for i in range(ph["rounds"]):
            for w in (ws if i % 2 == 0 else ws[::-1]):
                r = w.ask(do="step", model=m, steps=ph["steps"])
                if isinstance(r, str): got[w.name].append(1e9); say(f"{w.name}: {r}")
                else: got[w.name].append(r[0]); loss[w.name] = r[1]
        for n, v in got.items():
            d = sorted(x - y for x, y in zip(v, got[ws[0].name]))
            say(f"{m} {n:10s} {statistics.median(v):8.3f} ms  {statistics.median(d):+.3f} in turn [{d[0]:+.3f} {d[-1]:+.3f}]  [{min(v):.3f} {max(v):.3f}] loss {loss.get(n)}")
        say(f"({time.time()-t0:.0f} s)")
    for w in ws: w.p.stdin.close()
    for w in ws:
        try: w.p.wait(20)
        except Exception: w.p.kill()
