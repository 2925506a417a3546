# second call, carries sitepart1 and liger: ragged, windows beside FlashAttention-4; training
set -u
mkdir -p /tmp/site /tmp/lig; cat /root/peers/sitepart0 .gpu/sitepart1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
timeout -s INT 200 python3 -m rooftile bench attention_varlen attention_options rotary_attention attention_qkvpacked --against torch,compile,fa4,flex --stale --record --within 150 --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -i left $OUT/b.log | tail -2
timeout -s INT 170 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1
timeout -s INT 220 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1
timeout 100 python3 -m rooftile check --device cuda --stale --record --jobs 16 --within 80 --json > $OUT/c.json 2> $OUT/c.err; echo rc $?
tar czf $OUT/records.tgz records
