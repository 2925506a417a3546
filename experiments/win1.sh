set -u
mkdir -p /root/peers; cp .gpu/sitepart0 /root/peers/; export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout 100 python3 -m rooftile check attention_options_backward --device cuda --jobs 16 --within 80 --json > $OUT/cap.json 2>$OUT/err; echo cap rc $?
python3 - $OUT/cap.json <<'P'
import json,sys
r=json.load(open(sys.argv[1])); print({k:r[k] for k in ("passed","failed","refused")},"left",len(r["left"]),r["left"][:5])
for v in r["results"]:
    if v["status"] in ("failed","error"): print(v["op"],v["kernel"],v["case"],v["variant"],v["message"][:200])
P
