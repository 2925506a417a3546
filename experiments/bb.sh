cd /work/main; export PYTHONPATH=src
.venv/bin/rooftile build attention_backward attention_options_backward --arch sm_90a --json > /tmp/b.json 2>/tmp/b.err; echo $?; python3 - <<'P'
import json
r=json.load(open('/tmp/b.json'))
for x in r:
    if x['file'].startswith('v5_hopper') and 'prepare' not in x['instance'] and 'finish' not in x['instance'] : print(x['instance'],x['spill_bytes'])
P
