# carry: D52.sh commit liger.tar.xz
set -u
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
timeout -s INT 175 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; grep -a "│" $OUT/gpt2.log | cut -c1-160 | tail -5
tar czf $OUT/records.tgz records
timeout -s INT 180 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; grep -a "│" $OUT/llama.log | cut -c1-160 | tail -5
date +%T; tar czf $OUT/records.tgz records
