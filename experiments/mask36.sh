nvidia-smi -L | cut -c1-40; export PYTHONPATH=src
timeout 150 python3 -m rooftile check attention_options --device cuda --jobs 16 --json > $OUT/c.json 2> $OUT/c.err; echo rc $?
python3 - <<'Q'
import json,os
r=json.load(open(os.environ["OUT"]+"/c.json")); print({k:r[k] for k in ("passed","failed","refused")})
n=0
for v in r["results"]:
    if v["status"] in ("failed","error") and n<12: n+=1; print(v["op"],v["kernel"],v["case"][:60],v["variant"],v["message"][:200])
Q
rm $OUT/c.json; tail -3 $OUT/c.err
timeout 200 python3 .gpu/mask36.py
