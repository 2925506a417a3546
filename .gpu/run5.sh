export PYTHONPATH=src PYTHONUNBUFFERED=1
export ROOFTILE_CACHE=/tmp/rc
t0=$(date +%s)
lap() { echo "== $1 $(( $(date +%s) - t0 )) s"; }
timeout 130 python3 -m rooftile tune attention --ship --json > /tmp/t1 2>$OUT/err1; lap attention
timeout 60 python3 -m rooftile tune layernorm add_layernorm --case M32768_N768 --ship --json > /tmp/t2 2>$OUT/err2; lap layernorm
timeout 60 python3 -m rooftile tune cross_entropy --ship --json > /tmp/t3 2>$OUT/err3; lap ce
wc -l src/rooftile/tuned/*; cp src/rooftile/tuned/nvidia-h200.jsonl $OUT/tuned.jsonl
tail -2 $OUT/err?
python3 .gpu/prof.py rooftile compile 2>&1 | grep -v "^ *0\.[0-4]\|arn" | cut -c1-100
timeout 200 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record --folder $OUT/r --json > $OUT/train.jsonl 2>$OUT/errt; tail -3 $OUT/errt
lap train
python3 - <<'P'
import json,os
for l in open(os.environ["OUT"]+"/train.jsonl"):
    r=json.loads(l); e=r["extra"]; print(r["kernel"],[round(u) for u in r["us"]],round(e["tokens_per_s"]),round(e["peak_bytes"]/2**30,2),e["loss"],e["largest_smoothed_loss_difference"],e["interleaved"])
P
python3 -m pytest -q -s tests/test_models.py -m gpu 2>&1 | grep "ours\|gradients\|passed\|failed\|Error" 
lap models
tar czf $OUT/records.tgz -C $OUT r; rm -rf $OUT/r
