if nvidia-smi -L | grep -q H200; then bash .gpu/y1.sh; exit; fi
set -u
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout 150 python3 -m rooftile check --device cuda --stale --record --jobs 16 --within 120 --json > $OUT/c.json 2> $OUT/c.err; echo rc $?
python3 - <<'Q'
import json,os
r=json.load(open(os.environ["OUT"]+"/c.json")); print({k:r[k] for k in ("passed","failed","refused")},"left",len(r["left"]),r["left"][:5])
for v in r["results"]:
    if v["status"] in ("failed","error"): print(v["op"],v["kernel"],v["case"],v["variant"],v["message"][:200])
Q
rm $OUT/c.json
bash .gpu/counters.sh gemv
export PYTHONPATH=src:/tmp/lig
timeout -s INT 200 python3 -m rooftile bench geglu swiglu reglu geglu_again swiglu_again reglu_again mlp gated_mlp attention_decode attention_decode_e4m3 --against torch,compile,liger --stale --record --within 150 --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -i left $OUT/b.log | tail -2 | cut -c1-300
tar czf $OUT/records.tgz records
