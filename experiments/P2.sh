# second call. H200: training, decode; H100: segment_sum's launches and tuning. carry: P2.sh seg.py commit liger.tar.xz
set -u
mkdir -p /tmp/lig; nvidia-smi -L | cut -c1-30
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
if nvidia-smi -L | grep -q H200; then
timeout -s INT 230 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?
timeout -s INT 200 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?
timeout -s INT 90 python3 -m rooftile bench attention_decode --against torch,compile --record --within 70 --jobs 15 > $OUT/d.log 2>&1; echo decode rc $?
tail -4 $OUT/llama.log | cut -c1-300;  tail -4 $OUT/gpt2.log | cut -c1-300
timeout 90 python3 .gpu/seg.py 2>&1 | tail -60
else
timeout 100 python3 .gpu/seg.py 2>&1 | tail -60
date +%T
timeout 90 python3 -m rooftile check segment_sum --device cuda --jobs 16 --within 60 2>&1 | tail -3 | cut -c1-300
fi
date +%T
tar czf $OUT/records.tgz records
