set -u
mkdir -p /tmp/lig; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
timeout -s INT 110 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?
timeout -s INT 140 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; date +%T
export PYTHONPATH=src
timeout -s INT $1 python3 -m rooftile bench mlp gated_mlp linear_add gemv grad_norm --against torch,compile --stale --record --within $(( $1 - 20 )) --jobs 15 > $OUT/m.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/m.log | cut -c1-120
date +%T; tar czf $OUT/records.tgz records
