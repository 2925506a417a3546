# two cards. H200s: training on one, what is stale on the other; H100s: the whole gate shared out, then scaling. carry: X1.sh k7.sh commit sp0 liger.tar.xz
set -u
nvidia-smi -L | cut -c1-30; nproc
export ROOFTILE_COMMIT=$(cat .gpu/commit)
if ! nvidia-smi -L | grep -q H200; then
export PYTHONPATH=src
for i in 0 1; do ( names=$(python3 -c "
from rooftile.core.kernel import OPS
import rooftile.ops
n=sorted((o for o in OPS if not o.endswith('_backward')), key=lambda x:('attention' not in x, x)); print(*n[$i::2])")
CUDA_VISIBLE_DEVICES=$i timeout 280 python3 -m rooftile check $names --device cuda --jobs 16 --within 230 --record --json > $OUT/c$i.json 2> $OUT/c$i.err; echo gate $i rc $?
python3 - $i <<'P'
import json,os,sys
r=json.load(open(os.environ["OUT"]+"/c%s.json" % sys.argv[1])); print({k:r[k] for k in ("passed","failed","refused")},"left",len(r["left"]),r["left"][:3])
for v in r["results"]:
    if v["status"] in ("failed","error"): print(v["op"],v["kernel"],v["case"],v["variant"],v["message"][:200])
P
rm $OUT/c$i.json ) & done; wait; date +%T
bash .gpu/k7.sh; exit; fi
mkdir -p /root/peers /tmp/lig; cp .gpu/sp0 .gpu/sp1 /root/peers/; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export PYTHONPATH=src:/tmp/lig
( export CUDA_VISIBLE_DEVICES=0
timeout -s INT 230 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?
timeout -s INT 200 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $? ) &
( export CUDA_VISIBLE_DEVICES=1
timeout -s INT 85 python3 -m rooftile bench attention_decode --against torch,compile --record --within 75 --jobs 15 > $OUT/d.log 2>&1; echo decode rc $?
timeout -s INT 200 python3 -m rooftile bench cross_entropy linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen cross_entropy_ahead cross_entropy_overwrite mlp gated_mlp concat_kv reglu residual_add_overwrite geglu_again swiglu_again reglu_again embedding_accumulate grad_norm attention_decode_e4m3 --against torch,compile,liger --stale --record --within 160 --jobs 15 > $OUT/s.log 2>&1; echo stale rc $?; grep -c "^left" $OUT/s.log ) &
wait
tar czf $OUT/records.tgz records
