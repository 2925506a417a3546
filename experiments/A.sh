# call A. H200: issue 2's host times and decode's configs; H100: decode alone. carry: A.sh commit sp0
set -u
nvidia-smi -L | cut -c1-40; mkdir -p /root/peers; cp .gpu/sp0 /root/peers/
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
if nvidia-smi -L | grep -q H200; then
timeout -s INT 150 python3 -m rooftile bench vector_add gelu layernorm softmax cross_entropy embedding dropout gemm attention adamw --case host- --against torch,compile --record --jobs 15 > $OUT/h.log 2>&1; echo host rc $?; tail -3 $OUT/h.log | cut -c1-300
fi
timeout -s INT 120 python3 -m rooftile check attention_decode --device cuda --jobs 16 --record --json > $OUT/c.json 2> $OUT/c.err; echo rc $?; python3 -c "
import json,os; r=json.load(open(os.environ['OUT']+'/c.json')); print({k:r[k] for k in ('passed','failed','refused')})"
for c in S65536 T8_; do timeout -s INT 60 python3 -m rooftile tune attention_decode --case $c --every triton --jobs 15 --json > $OUT/tune_$c.json 2> $OUT/tune.err; echo tune $c rc $?; tail -c 1800 $OUT/tune_$c.json; done
tar czf $OUT/records.tgz records
