.venv/bin/rooftile records --stale --json | .venv/bin/python -c "
import json,sys,collections
rows=json.load(sys.stdin)
d=collections.Counter(r.get('op') for r in rows if 'h100' in str(r.get('device')))
print(sum(d.values()));print(d.most_common())"
