set -u
nvidia-smi -L | cut -c1-40; export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout 90 python3 .gpu/dec42.py 2>&1 | tail -30
timeout -s INT 100 python3 -m rooftile check attention_decode attention_decode_e4m3 --kernel cuda.v2_rows --device cuda --jobs 16 --json > $OUT/c.json 2> $OUT/c.err; echo rc $?; python3 -c "
import json,os; r=json.load(open(os.environ['OUT']+'/c.json')); print({k:r[k] for k in ('passed','failed','refused')})
for v in r['results']:
    if v['status'] in ('failed','error'): print(v['op'],v['kernel'],v['case'],v['variant'],v['message'][:300])" | head -20
