# this session's last but one call. carry: E58.sh commit liger.tar.xz
set -u
mkdir -p /tmp/lig; nvidia-smi -L | cut -c1-60; date +%T
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
ops="cross_entropy cross_entropy_ahead cross_entropy_overwrite concat_kv concat_kv_e4m3 attention_decode attention_decode_e4m3"
timeout -s INT -k 20 80 python3 -m rooftile check $ops attention attention_options linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen --device cuda --jobs 16 --stale --record --within 60 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250; tail -2 $OUT/c.txt | cut -c1-400; date +%T
timeout -s INT -k 20 85 python3 -m rooftile bench $ops --case M8192_V128256 --against torch,compile --stale --record --within 40 --jobs 15 > $OUT/a.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/a.log | cut -c1-200
timeout -s INT -k 20 130 python3 -m rooftile bench $ops attention --against torch,compile --stale --record --within 100 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-200; date +%T
export PYTHONPATH=src:/tmp/lig
timeout -s INT -k 20 150 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; date +%T
timeout -s INT -k 20 110 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; date +%T
timeout -s INT 60 python3 -m rooftile bench linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen --against torch,compile,liger --stale --record --within 40 --jobs 15 > $OUT/l.log 2>&1; echo lce rc $?; grep -i "^left\|^seconds" $OUT/l.log | cut -c1-200; date +%T
tar czf $OUT/records.tgz records
