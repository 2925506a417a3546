# first call. H200: training, then decode; H100: the whole gate. carry: P1.sh commit sp0 liger.tar.xz
set -u
mkdir -p /root/peers /tmp/lig; cp .gpu/sp0 /root/peers/; nvidia-smi -L | cut -c1-30
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
if nvidia-smi -L | grep -q H200; then
timeout -s INT 230 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?
timeout -s INT 200 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?
timeout -s INT 90 python3 -m rooftile bench attention_decode --against torch,compile --record --within 70 --jobs 15 > $OUT/d.log 2>&1; echo decode rc $?
tail -4 $OUT/llama.log | cut -c1-300;  tail -4 $OUT/gpt2.log | cut -c1-300
else
timeout 400 python3 -m rooftile check --device cuda --jobs 16 --within 340 --record --json > $OUT/c.json 2> $OUT/c.err; echo rc $?
python3 - <<'P'
import json,os
r=json.load(open(os.environ["OUT"]+"/c.json")); print({k:r[k] for k in ("passed","failed","refused")},"left",len(r["left"]),r["left"][:5])
for v in r["results"]:
    if v["status"] in ("failed","error"): print(v["op"],v["kernel"],v["case"],v["variant"],v["message"][:200])
P
rm $OUT/c.json
fi
date +%T
tar czf $OUT/records.tgz records
