export PYTHONPATH=src PYTHONUNBUFFERED=1
python3 -c "
import rooftile
from rooftile.core.kernel import OPS
print('\n'.join(o for o in OPS if not o.endswith('_backward')))" > /tmp/ops
python3 .gpu/prof.py rooftile compile rooftile 2>&1 | grep -v "^ *0.0" | tee $OUT/prof.txt | grep -v " 0\.[01]"
( time timeout 150 python3 -m rooftile tune attention --json > $OUT/tune.jsonl ) 2>&1 | tail -4
python3 - <<'P'
import json,os
for l in open(os.environ["OUT"]+"/tune.jsonl"):
    r=json.loads(l); print(r["op"],r["case"][:100]); 
    for k,v in list(r["extra"]["tried"].items())[:7]: print("    ",v,k)
P
( time xargs -P 6 -I{} sh -c 'timeout 280 python3 -m rooftile check {} --device cuda --json > $OUT/check-{}.json 2> /tmp/err-{}' < /tmp/ops ) 2>&1 | grep real
python3 - <<'P'
import json,os,glob
for f in sorted(glob.glob(os.environ["OUT"]+"/check-*.json")):
    try: d=json.load(open(f))
    except Exception as e: print(f,repr(e), open("/tmp/err-"+f.split("check-")[1][:-5]).read()[-300:]); continue
    print(f.split("check-")[1],d["passed"],d["failed"],d["refused"])
    for v in [v for v in d["results"] if v["status"] in("failed","error")][:6]:
        print("   ",v["op"],v["kernel"],v["case"],v["variant"],v["message"][:170])
P
tar czf $OUT/checks.tgz $OUT/check-*.json 2>/dev/null; rm $OUT/check-*.json
