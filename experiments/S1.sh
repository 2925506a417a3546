mkdir -p /root/peers; cp .gpu/sp0 /root/peers/; nvidia-smi -L | cut -c1-30
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout 400 python3 -m rooftile check --device cuda --jobs 16 --within 340 --record --json > $OUT/c.json 2> $OUT/c.err; echo rc $?
python3 - <<'P'
import json,os,collections
r=json.load(open(os.environ["OUT"]+"/c.json")); print({k:r[k] for k in ("passed","failed","refused")},"left",len(r["left"]),r["left"][:5])
for v in r["results"]:
    if v["status"] in ("failed","error"): print(v["op"],v["kernel"],v["case"],v["variant"],v["message"][:200])
P
rm $OUT/c.json
tar czf $OUT/records.tgz records
