set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
timeout 60 python3 -m rooftile check gelu --device cuda --stale --record --jobs 15 > $OUT/check.log 2>&1; echo rc $?; tail -2 $OUT/check.log
timeout 50 python3 -m rooftile tune reduce_sum --case float64 --every cuda.v5 --ship --jobs 15 --json > $OUT/tr.json 2> $OUT/tr.log; grep -o '"tried.*}' $OUT/tr.json | cut -c1-1200
timeout -s INT 60 python3 -m rooftile bench gelu --against torch,compile,liger --stale --record --within 50 --jobs 15 > $OUT/b.log 2>&1; echo rc $?
timeout -s INT 30 python3 -m rooftile bench reduce_sum --case float64 --against torch,compile --record > $OUT/b2.log 2>&1; echo rc $?
timeout 120 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1
timeout 170 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1
python3 - <<'P'
import json
for m in ("llama-1.2b","gpt2-124m"):
    for l in list(open(f"records/nvidia-h100-80gb-hbm3/train.{m}.jsonl"))[-3:]:
        r=json.loads(l); print(m,r["kernel"],r["us"],r["extra"].get("peak_bytes"),r["extra"].get("largest_smoothed_loss_difference_to"))
for f in ("gelu","reduce_sum"):
    for l in list(open(f"records/nvidia-h100-80gb-hbm3/{f}.jsonl"))[-90:]:
        r=json.loads(l)
        if r["us"] and ("x14336" in r["case"] or "float64" in r["case"] or "x3072" in r["case"]): print(r["op"],r["case"][:36],r["kernel"],r["us"][1])
P
tar czf $OUT/records.tgz records/nvidia-h100-80gb-hbm3 src/rooftile/tuned; cd $OUT; tar czf logs.tgz *.log *.json; rm -f *.log *.json
