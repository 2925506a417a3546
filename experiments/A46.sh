# session 46, first call on a machine, after `next` has landed. carry: A46.sh commit sp0 liger.tar.xz. Then B45.sh (sp1 peers2.xz) on the same machine within 30 s; on an H100 then C45.sh.
set -u
mkdir -p /root/peers /tmp/lig; cp .gpu/sp0 /root/peers/; nvidia-smi -L | cut -c1-30
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
timeout -s INT 60 python3 -m rooftile check segment_sum attention_decode --device cuda --jobs 16 --stale --record --within 40 > $OUT/c.txt 2>&1; echo check rc $?; tail -2 $OUT/c.txt | cut -c1-200
if nvidia-smi -L | grep -q H200; then
timeout -s INT 120 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?
timeout -s INT 150 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?
timeout -s INT 100 python3 -m rooftile bench attention_decode attention segment_sum --against torch,compile --stale --record --within 75 --jobs 15 > $OUT/d.log 2>&1; echo decode rc $?
else
timeout -s INT 150 python3 -m rooftile check gemm linear mlp gated_mlp linear_add rope rope_overwrite concat_kv --device cuda --jobs 16 --stale --record --within 110 > $OUT/c2.txt 2>&1; echo check rc $?; tail -2 $OUT/c2.txt | cut -c1-200
timeout -s INT 240 python3 -m rooftile bench segment_sum mlp gated_mlp linear_add gemm linear rope rope_overwrite --against torch,compile --stale --record --within 210 --jobs 15 > $OUT/m.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/m.log | cut -c1-120
fi
date +%T; tar czf $OUT/records.tgz records
