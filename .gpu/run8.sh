export PYTHONPATH=src PYTHONUNBUFFERED=1
export ROOFTILE_CACHE=/tmp/rc
t0=$(date +%s)
lap() { echo "== $1 $(( $(date +%s) - t0 )) s"; }
rm -f src/rooftile/tuned/nvidia-h200.jsonl
timeout 70 python3 -m rooftile tune attention --case T1024 --ship --json > /tmp/t1 2>$OUT/err1; lap tune
cp src/rooftile/tuned/nvidia-h200.jsonl $OUT/tuned.jsonl; wc -l $OUT/tuned.jsonl
timeout 130 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record --folder $OUT/r --json > $OUT/train.jsonl 2>$OUT/errt; tail -2 $OUT/errt; lap train
python3 - <<'P'
import json,os
for l in open(os.environ["OUT"]+"/train.jsonl"):
    r=json.loads(l); e=r["extra"]; print(r["kernel"],[round(u) for u in r["us"]],round(e["tokens_per_s"]),round(e["peak_bytes"]/2**30,2),e["loss"],e["largest_smoothed_loss_difference_to"],e["interleaved"])
P
( timeout 120 python3 -m rooftile bench attention --against torch,compile --record --folder $OUT/r --json > $OUT/bench.jsonl ) 2>$OUT/errb; tail -2 $OUT/errb; lap bench
wc -l $OUT/bench.jsonl
tar czf $OUT/records.tgz -C $OUT r; rm -rf $OUT/r
timeout 90 python3 -m rooftile check attention --device cuda 2>&1 | tail -3; lap check
