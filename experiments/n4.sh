set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout 300 python3 -m rooftile check --device cuda --stale --record --jobs 16 --within 250 --json > $OUT/c.json 2> $OUT/c.err; echo rc $?
python3 - <<'P'
import json,os
r=json.load(open(os.environ["OUT"]+"/c.json")); print({k:r[k] for k in ("passed","failed","refused")},"left",len(r["left"]),r["left"][:5])
P
rm $OUT/c.json
bash .gpu/counters.sh gemv reduce_sum
tar czf $OUT/records.tgz records
