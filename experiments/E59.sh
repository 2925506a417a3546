# next session, first call. carry: E59.sh commit liger.tar.xz. Every step is bounded by -k and its records are kept at once: E58 lost 500 s of figures to a bench that did not hear Ctrl-C.
set -u
mkdir -p /tmp/lig; nvidia-smi -L | cut -c1-60; date +%T
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
keep() { tar czf $OUT/records.tgz records; date +%T; }
timeout -s INT -k 20 150 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; keep
timeout -s INT -k 20 110 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; keep
export PYTHONPATH=src
ops="cross_entropy cross_entropy_ahead cross_entropy_overwrite concat_kv concat_kv_e4m3 attention_decode attention_decode_e4m3"
timeout -s INT -k 20 120 python3 -m rooftile check $ops attention attention_options --device cuda --jobs 16 --stale --record --within 90 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250; tail -2 $OUT/c.txt | cut -c1-400; keep
timeout -s INT -k 20 150 python3 -m rooftile bench $ops attention --against torch,compile --stale --record --within 125 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-200; keep
