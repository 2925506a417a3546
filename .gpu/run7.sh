export PYTHONPATH=src PYTHONUNBUFFERED=1
export ROOFTILE_CACHE=/tmp/rc
t0=$(date +%s)
lap() { echo "== $1 $(( $(date +%s) - t0 )) s"; }
rm -f src/rooftile/tuned/nvidia-h200.jsonl
timeout 70 python3 -m rooftile tune attention --case T1024 --ship --json > /tmp/t1 2>$OUT/err1; lap tune; tail -1 $OUT/err1
cp src/rooftile/tuned/nvidia-h200.jsonl $OUT/tuned.jsonl; wc -l $OUT/tuned.jsonl
timeout 150 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record --folder $OUT/r --json > $OUT/train.jsonl 2>$OUT/errt; tail -3 $OUT/errt; lap train
python3 - <<'P'
import json,os
for l in open(os.environ["OUT"]+"/train.jsonl"):
    r=json.loads(l); e=r["extra"]; print(r["kernel"],[round(u) for u in r["us"]],round(e["tokens_per_s"]),round(e["peak_bytes"]/2**30,2),e["loss"],e["largest_smoothed_loss_difference"],e["interleaved"])
P
( timeout 280 python3 -m rooftile bench --against torch,compile --record --folder $OUT/r --json > $OUT/bench.jsonl ) 2>$OUT/errb; tail -2 $OUT/errb; lap bench
python3 - <<'P'
import json,os
n=0
for l in open(os.environ["OUT"]+"/bench.jsonl"):
    r=json.loads(l); n+=1
    if "host_us" in r["extra"]: print(r["op"],r["kernel"],round(r["extra"]["host_us"],1))
    if r["status"] in("failed","error"): print("!!",r["op"],r["case"],r["kernel"],r["message"][:100])
print(n,"records")
P
tar czf $OUT/records.tgz -C $OUT r; rm -rf $OUT/r
timeout 120 python3 -m pytest -q -n 12 -s tests -m gpu > $OUT/pytest.log 2>&1; tail -3 $OUT/pytest.log; lap pytest
