test -f /root/peers/sp0 || { echo "another machine"; exit 9; }; cp .gpu/sp1 /root/peers/
set -u
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
timeout -s INT 170 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo rc $?
timeout -s INT 220 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo rc $?
tail -4 $OUT/llama.log | cut -c1-300;  tail -4 $OUT/gpt2.log | cut -c1-300
tar czf $OUT/records.tgz records
