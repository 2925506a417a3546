# carry: Q56.sh commit liger.tar.xz
set -u
mkdir -p /tmp/lig; nvidia-smi -L | cut -c1-60; date +%T
xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout -s INT -k 20 40 python3 -m rooftile bench attention --case B1_T16384_S16384_H8_D256 --against torch --stale --record --within 30 --jobs 15 > $OUT/a.log 2>&1; echo bench rc $?; date +%T
export PYTHONPATH=src:/tmp/lig
timeout -s INT -k 20 150 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; tail -4 $OUT/gpt2.log | cut -c1-200; date +%T
timeout -s INT -k 20 110 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; tail -4 $OUT/llama.log | cut -c1-200; date +%T
tar czf $OUT/records.tgz records
export PYTHONPATH=src
L=$(( 485 - SECONDS )); echo suites $L
timeout -s INT -k 20 $L python3 -m rooftile suites --record --within $(( L - 45 )) --jobs 16 > $OUT/s.log 2>&1; echo suites rc $?; tail -14 $OUT/s.log | cut -c1-400; date +%T
tar czf $OUT/records.tgz records
