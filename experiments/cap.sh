# The soft cap of branch next9 on a GPU: gate, then beside PyTorch, torch.compile and the portable kernel (peers as in w2.sh for FlashAttention-4).
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout 200 python3 -m rooftile check attention_options_backward attention_varlen_backward --device cuda --jobs 16 --within 150 --json > $OUT/c.json; echo rc $?
python3 - <<'P'
import json,os
r=json.load(open(os.environ["OUT"]+"/c.json")); print({k:r[k] for k in ("passed","failed","refused")},len(r["left"]))
for v in r["results"]:
    if v["status"] in ("failed","error"): print(v["op"],v["kernel"],v["case"],v["variant"],v["message"][:200])
P
timeout -s INT 150 python3 -m rooftile bench attention_options --case 'B4_T4096_S4096_H16_D128-bfloat16-sinks=None-bias=None-constant_bias=None-mask=None-seed=None' --against torch,compile --within 120 | tail -20
