export PYTHONPATH=src PYTHONUNBUFFERED=1
python3 .gpu/host.py
python3 .gpu/colsum.py
( time timeout 200 python3 -m pytest -q -n 8 tests -m gpu 2>&1 | tail -40 ) 2>&1
for c in "layernorm M32768_N768" "cross_entropy V50304" "dropout x"; do set -- $c; timeout 100 python3 -m rooftile tune $1 --case $2 --json >> $OUT/tune.jsonl 2>$OUT/err-$1; tail -2 $OUT/err-$1; done
python3 - <<'P'
import json,os
for l in open(os.environ["OUT"]+"/tune.jsonl"):
    r=json.loads(l); print(r["op"],r["case"][:100]); 
    for k,v in sorted(r["extra"]["tried"].items(),key=lambda i:i[1])[:5]+sorted(r["extra"]["tried"].items(),key=lambda i:i[1])[-1:]: print("    ",v,k)
P
