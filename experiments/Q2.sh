# carry: Q2.sh commit sp1 peers2.xz liger.tar.xz; after Q1 on the same machine
set -u
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -; xz -dc .gpu/liger.tar.xz | tar -C /tmp/site -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
go() { t=$1; shift; echo "== $*"; timeout -s INT $t python3 -m rooftile bench "$@" --record --within $((t-25)) --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -i "^left" $OUT/b.log | cut -c1-100; cat $OUT/b.log >> $OUT/all.log; }
if nvidia-smi -L | grep -q H200; then
go 90 attention --case B1_T16384_S16384_H16_D128-bfloat16-causal=True --against torch,compile,fa4,flex
go 300 cross_entropy cross_entropy_ahead cross_entropy_overwrite linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen concat_kv segment_sum mlp gated_mlp reglu residual_add_overwrite embedding_accumulate grad_norm --against torch,compile,liger --stale
else
go 75 rotary_attention --against torch,compile,fa4 --stale
go 110 linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen --against torch,compile,liger --stale
fi
date +%T
tar czf $OUT/records.tgz records
