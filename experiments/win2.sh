set -eu
if nvidia-smi -L | grep -q H200; then exec bash .gpu/y2.sh; fi
mkdir -p /tmp/site; cat /root/peers/sitepart0 .gpu/sitepart1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
set +e
timeout -s INT 120 python3 -m rooftile bench attention_options_backward --against fa4 --json --within 90 --jobs 15 > $OUT/b.json 2> $OUT/b.err; echo rc $?; tail -3 $OUT/b.err
python3 - <<'P'
import json,os
by={}
for l in open(os.environ["OUT"]+"/b.json"):
    d=json.loads(l)
    if d.get("us"): by.setdefault((d["op"],d["case"]),{})[d["kernel"]]=d["us"][1]
for (o,c),k in by.items():
    p={a:b for a,b in k.items() if a.startswith("peer")}
    u={a:b for a,b in k.items() if not a.startswith("peer")}
    b=min(u,key=u.get); print(o[10:26],c[:44],c[-60:],b,u[b],p,"%.3f"%(min(p.values())/u[b]) if p else "", {a:x for a,x in u.items() if "hopper" in a})
P
PYTHONPATH=src timeout 100 python3 .gpu/tog.py
