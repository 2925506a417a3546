# first call; carry .gpu/w1.sh .gpu/commit .gpu/sitepart0. Then at once, with nothing between, w2.sh.
set -u
mkdir -p /root/peers; cp .gpu/sitepart0 /root/peers/; export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout 200 python3 -m rooftile check --device cuda --stale --record --jobs 16 --within 160 --json > $OUT/c.json 2> $OUT/c.err; echo rc $?
python3 - <<'P'
import json,os
r=json.load(open(os.environ["OUT"]+"/c.json")); print({k:r[k] for k in ("passed","failed","refused")},"left",len(r["left"]),r["left"][:5])
for v in r["results"]:
    if v["status"] in ("failed","error"): print(v["op"],v["kernel"],v["case"],v["variant"],v["message"][:200])
P
rm $OUT/c.json
timeout -s INT 120 python3 -m rooftile bench attention_decode attention_decode_e4m3 --against torch,compile --stale --record --within 100 --jobs 15 > $OUT/d.log 2>&1; echo rc $?
tar czf $OUT/records.tgz records
