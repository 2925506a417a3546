export PYTHONPATH=src PYTHONUNBUFFERED=1
( time timeout 200 python3 -m rooftile check --device cuda --json > $OUT/check.json ) 2>&1 | grep real
python3 - <<'P'
import json,os
d=json.load(open(os.environ["OUT"]+"/check.json")); print(d["passed"],d["failed"],d["refused"])
for v in d["results"]:
    if v["status"] in("failed","error"): print(v["op"],v["kernel"],v["case"],v["variant"],v["message"][:220])
P
( time timeout 150 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record --folder $OUT/r --json > $OUT/train.jsonl ) 2>&1 | tail -8
python3 - <<'P'
import json,os
for l in open(os.environ["OUT"]+"/train.jsonl"):
    r=json.loads(l); e=r["extra"]; print(r["kernel"],r["us"],round(e["tokens_per_s"]),e["peak_bytes"]/2**30,e["loss"],e["largest_smoothed_loss_difference"],e["interleaved"])
P
( time timeout 240 python3 -m rooftile bench --against torch,compile --record --folder $OUT/r --json > $OUT/bench.jsonl ) 2>&1 | tail -6
python3 - <<'P'
import json,os
for l in open(os.environ["OUT"]+"/bench.jsonl"):
    r=json.loads(l); print(r["op"][:16],r["case"][:30],r["kernel"],r["us"] and round(r["us"][1],1),r["gbps"] and round(r["gbps"]),r["tflops"] and round(r["tflops"]),r["extra"].get("host_us",""),r["message"][:60] if r["status"]!="passed" else "")
P
tar czf $OUT/records.tgz -C $OUT r; rm -rf $OUT/r
