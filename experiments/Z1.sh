# carry: Z1.sh commit sp0 liger.tar.xz
set -u
nvidia-smi -L | cut -c1-30
mkdir -p /root/peers; cp .gpu/sp0 /root/peers/
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT 175 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; tail -4 $OUT/gpt2.log | cut -c1-300
date +%T; tar czf $OUT/records.tgz records
