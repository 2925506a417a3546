# first call of session 44. carry: W1.sh padded.py commit sp0 liger.tar.xz. A cold machine takes 20 s for the first Python: limits are wide.
set -u
mkdir -p /root/peers /tmp/lig; cp .gpu/sp0 /root/peers/; nvidia-smi -L | cut -c1-30
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
if nvidia-smi -L | grep -q H200; then
timeout -s INT 230 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?
timeout -s INT 200 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?
timeout -s INT 90 python3 -m rooftile bench attention_decode --against torch,compile --record --within 70 --jobs 15 > $OUT/d.log 2>&1; echo decode rc $?
else
timeout 90 python3 -m rooftile check linear --device cuda --jobs 16 --record > $OUT/c.txt 2>&1; echo check rc $?; tail -2 $OUT/c.txt | cut -c1-200
timeout -s INT 110 python3 -m rooftile bench linear --against torch,compile --stale --record --within 80 --jobs 15 > $OUT/l.log 2>&1; echo linear rc $?; tail -3 $OUT/l.log | cut -c1-160
timeout -s KILL 190 python3 .gpu/padded.py 160 > $OUT/p.txt 2>&1; tail -25 $OUT/p.txt | cut -c1-260
timeout -s INT 110 python3 -m rooftile bench cross_entropy_overwrite concat_kv adamw swiglu_again attention_mask cross_entropy_ahead embedding_accumulate dropout --against torch --within 60 --jobs 15 --json > $OUT/o.json 2> $OUT/o.err; echo over rc $?
python3 - <<'P'
import json,os,collections
c=collections.Counter()
for l in open(os.environ["OUT"]+"/o.json"):
    try: d=json.loads(l)
    except Exception: continue
    c[d["op"],d["status"]]+=1
    if d["status"]!="passed": print(d["op"],d["kernel"],d["case"][:60],d["status"],d["message"][:150])
print(dict(c))
P
fi
date +%T; tar czf $OUT/records.tgz records
