# first call. carry: E59.sh commit liger.tar.xz. Every step is bounded by -k and its records are kept at once.
set -u
mkdir -p /tmp/lig; nvidia-smi -L | cut -c1-60; date +%T
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
keep() { tar czf $OUT/records.tgz records; date +%T; }
timeout -s INT -k 20 150 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; tail -12 $OUT/gpt2.log | cut -c1-200; keep
timeout -s INT -k 20 110 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; tail -8 $OUT/llama.log | cut -c1-200; keep
export PYTHONPATH=src
ops="cross_entropy cross_entropy_ahead cross_entropy_overwrite concat_kv concat_kv_e4m3"
timeout -s INT -k 20 120 python3 -m rooftile check $ops attention_decode attention_decode_e4m3 --device cuda --jobs 16 --stale --record --within 90 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250; tail -2 $OUT/c.txt | cut -c1-400; keep
timeout -s INT -k 20 150 python3 -m rooftile bench $ops --against torch,compile --stale --record --within 125 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-200; keep
