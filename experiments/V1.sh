set -u
nvidia-smi -L | cut -c1-30
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
timeout 25 python3 -m rooftile check linear --device cuda --jobs 16 --record > $OUT/c.txt 2>&1; echo check rc $?; tail -2 $OUT/c.txt | cut -c1-200
timeout -s KILL 90 python3 .gpu/padded.py 60 > $OUT/p.txt 2>&1; tail -25 $OUT/p.txt | cut -c1-260; echo $SECONDS
timeout -s INT 50 python3 -m rooftile bench linear --against torch,compile --stale --record --within 40 --jobs 15 > $OUT/l.log 2>&1; echo linear rc $?; grep -i "^left" $OUT/l.log | head -3; grep -E "v2_sums|N2304" $OUT/l.log | head -12 | cut -c1-180
timeout -s INT 60 python3 -m rooftile bench cross_entropy_overwrite concat_kv adamw swiglu_again attention_mask cross_entropy_ahead embedding_accumulate dropout --against torch --within 25 --jobs 15 --json > $OUT/o.json 2> $OUT/o.err; echo over rc $?
python3 - <<'P'
import json,os,collections
c=collections.Counter()
for l in open(os.environ["OUT"]+"/o.json"):
    try: d=json.loads(l)
    except Exception: continue
    c[d["op"],d["status"]]+=1
    if d["status"] not in ("passed",): print(d["op"],d["kernel"],d["case"][:60],d["status"],d["message"][:150])
print(dict(c))
P
date +%T; echo $SECONDS
tar czf $OUT/records.tgz records
