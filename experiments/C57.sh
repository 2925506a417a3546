# after a change to attention (next52 merged): everything that speaks of it. carry: C57.sh commit liger.tar.xz
set -u
mkdir -p /tmp/lig; nvidia-smi -L | cut -c1-60; date +%T
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT -k 20 130 python3 -m rooftile check attention attention_decode attention_qkvpacked rotary_attention --device cuda --jobs 16 --stale --record --within 100 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250; tail -2 $OUT/c.txt | cut -c1-400; date +%T
timeout -s INT -k 20 110 python3 -m rooftile bench attention_decode --against torch,compile --stale --record --within 90 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; date +%T
export PYTHONPATH=src:/tmp/lig
timeout -s INT -k 20 150 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; date +%T
timeout -s INT -k 20 110 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; date +%T
tar czf $OUT/records.tgz records
