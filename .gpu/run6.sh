export PYTHONPATH=src PYTHONUNBUFFERED=1
export ROOFTILE_CACHE=/tmp/rc
t0=$(date +%s)
lap() { echo "== $1 $(( $(date +%s) - t0 )) s"; }
timeout 70 python3 -m rooftile tune layernorm add_layernorm --case M32768_N768 --ship --json > /tmp/t2 2>$OUT/err2; lap layernorm
cp src/rooftile/tuned/nvidia-h200.jsonl $OUT/tuned.jsonl; wc -l $OUT/tuned.jsonl
timeout 150 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record --folder $OUT/r --json > $OUT/train.jsonl 2>$OUT/errt; tail -3 $OUT/errt; lap train
python3 - <<'P'
import json,os
for l in open(os.environ["OUT"]+"/train.jsonl"):
    r=json.loads(l); e=r["extra"]; print(r["kernel"],[round(u) for u in r["us"]],round(e["tokens_per_s"]),round(e["peak_bytes"]/2**30,2),e["loss"],e["largest_smoothed_loss_difference"],e["interleaved"])
P
( timeout 300 python3 -m rooftile bench --against torch,compile --record --folder $OUT/r --json > $OUT/bench.jsonl ) 2>$OUT/errb; tail -4 $OUT/errb; lap bench
python3 - <<'P'
import json,os
for l in open(os.environ["OUT"]+"/bench.jsonl"):
    r=json.loads(l); print(r["op"][:16],r["case"][:30],r["kernel"],r["us"] and round(r["us"][1],1),r["gbps"] and round(r["gbps"]),r["tflops"] and round(r["tflops"]),r["extra"].get("host_us",""),r["message"][:60] if r["status"]!="passed" else "")
P
tar czf $OUT/records.tgz -C $OUT r; rm -rf $OUT/r
