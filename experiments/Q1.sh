# H200: training and decode; H100: segment_sum tuned and measured. carry: Q1.sh commit sp0 liger.tar.xz
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
timeout 60 python3 -m rooftile check segment_sum --device cuda --jobs 16 --within 50 --record 2>&1 | tail -2 | cut -c1-300
timeout 100 python3 -m rooftile tune segment_sum --every cuda --jobs 15 --ship > $OUT/tune.log 2>&1; echo tune rc $?; tail -12 $OUT/tune.log | cut -c1-220
timeout -s INT 100 python3 -m rooftile bench segment_sum --against torch,compile --record --within 85 --jobs 15 > $OUT/s.log 2>&1; echo bench rc $?
fi
date +%T
tar czf $OUT/records.tgz records src/rooftile/tuned
