export PYTHONPATH=src PYTHONUNBUFFERED=1
python3 .gpu/prof.py rooftile compile 2>&1 | tee $OUT/prof.txt
( time timeout 200 python3 -m rooftile check --device cuda --json > $OUT/check.json ) 2>&1 | grep -v "^$" | tail -4
python3 - <<'P'
import json,os
d=json.load(open(os.environ["OUT"]+"/check.json")); print(d["passed"],d["failed"],d["refused"])
for v in [v for v in d["results"] if v["status"] in("failed","error")][:40]:
    print(v["op"],v["kernel"],v["case"],v["variant"],v["message"][:200])
P
