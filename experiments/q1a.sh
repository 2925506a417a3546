# call 1, main as it is: issue 2's host times; on an H100 the branch's gate. carry: q1a.sh commit sp0 next.patch next.commit k12.sh
set -u
nvidia-smi -L | cut -c1-40; mkdir -p /root/peers; cp .gpu/sp0 /root/peers/
if ! nvidia-smi -L | grep -q H200; then
  patch -p1 -s < .gpu/next.patch || exit 8; cp .gpu/next.commit .gpu/commit; exec bash .gpu/k12.sh
fi
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT 150 python3 -m rooftile bench vector_add gelu layernorm softmax cross_entropy embedding dropout gemm attention adamw --case host- --against torch,compile --record --jobs 15 > $OUT/h.log 2>&1; echo host rc $?; tail -3 $OUT/h.log | cut -c1-300
tar czf $OUT/records.tgz records
