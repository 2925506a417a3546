# first call of a session, on main as it is (issue 2's host times, decode's configs). carry: q1.sh commit sitepart0
set -u
nvidia-smi -L | cut -c1-40; mkdir -p /root/peers; cp .gpu/sitepart0 /root/peers/
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT 150 python3 -m rooftile bench vector_add gelu layernorm softmax cross_entropy embedding dropout gemm attention adamw --case host- --against torch,compile --record --jobs 15 > $OUT/h.log 2>&1; echo host rc $?; tail -3 $OUT/h.log | cut -c1-300
for c in S65536 S64_N1024 T8_; do timeout -s INT 60 python3 -m rooftile tune attention_decode --case $c --every triton --jobs 15 --json > $OUT/tune_$c.json 2> $OUT/tune.err; echo tune $c rc $?; tail -c 1500 $OUT/tune_$c.json; done
tar czf $OUT/records.tgz records
