# session 49, first call on a machine, after `next` has landed. carry: A49.sh commit liger.tar.xz sp0. Then B47.sh (sp1 peers2.xz; attention --case T8_ beside fa4) on the same machine within 30 s.
set -u
mkdir -p /root/peers /tmp/lig; cp .gpu/sp0 /root/peers/; nvidia-smi -L | cut -c1-30
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
timeout -s INT 60 python3 -m rooftile check segment_sum attention_decode attention_decode_e4m3 gemv_backward --device cuda --jobs 16 --stale --record --within 40 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-200; tail -2 $OUT/c.txt | cut -c1-200
timeout -s INT 175 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; date +%T
timeout -s INT 150 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; date +%T
timeout -s INT 150 python3 -m rooftile bench attention_decode attention_decode_e4m3 segment_sum gemv grad_norm linear_add --against torch,compile --stale --record --within 120 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/d.log | cut -c1-120
date +%T; tar czf $OUT/records.tgz records
