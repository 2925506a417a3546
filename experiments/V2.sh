set -u
mkdir -p /tmp/lig; [ -d /tmp/lig/liger_kernel ] || xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
timeout -s INT ${1:-170} python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; tail -4 $OUT/gpt2.log | cut -c1-300
tar czf $OUT/records.tgz records; echo $SECONDS
