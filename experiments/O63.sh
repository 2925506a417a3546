# first call of the next session: whether masked copies are what made norms of a sum under LayerNorm slower (ab62 old|new: drop_layer, add_ln), or the card; then the bench of what is
# stale, gates, GPT-2's step. carry: O63.sh ab62.py inc_old liger.tar.xz commit. inc_old: the headers of then with policy.cuh of 32e656ca (make it anew: cp -r src/rooftile/cuda/include .gpu/inc_old;
# git show 32e656ca:src/rooftile/cuda/include/rooftile/policy.cuh > .gpu/inc_old/rooftile/policy.cuh). ~530 s
set -u
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
keep() { tar czf $OUT/records.tgz records; date +%T; }
nvidia-smi -L | cut -c1-60; date +%T
for i in 1 2; do for k in old new; do timeout -s INT -k 5 60 python3 .gpu/ab62.py $k > /tmp/ab_$k$i.txt 2> /tmp/ab_err_$k$i.txt; done; done; date +%T
python3 - <<'P'
import json,os,statistics as s
o="/tmp"; g=lambda k:[json.loads(next(l for l in open(f"{o}/ab_{k}{i}.txt") if l.startswith("AB "))[3:]) for i in (1,2)]
try:
    a,b=g("old"),g("new")
    for n in a[0]: print(f"{n:24s} old {s.median(x[n] for x in a):8.2f} new {s.median(x[n] for x in b):8.2f} {s.median(x[n] for x in a)/s.median(x[n] for x in b):.3f}")
except Exception as e: print("ab", e); os.system(f"tail -3 {o}/ab_err_old1.txt")
P
ops="adamw adamw_measured embedding embedding_accumulate cross_entropy mlp"
timeout -s INT -k 20 190 python3 -m rooftile bench $ops --against torch,compile,liger --stale --record --within 160 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-300; keep
timeout -s INT -k 20 60 python3 -m rooftile check $ops gemv softmax attention_options attention_varlen transpose --device cuda --jobs 16 --stale --record --within 40 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250 | head -5; tail -2 $OUT/c.txt | cut -c1-400; keep
timeout -s INT -k 10 150 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; tail -3 $OUT/gpt2.log | cut -c1-300; keep
timeout -s INT -k 20 80 python3 .gpu/prof62.py > $OUT/p.txt 2>&1; grep -v "^[0-9][0-9]:" $OUT/p.txt | tail -48 | cut -c1-170
