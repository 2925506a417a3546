set -u
test -d /tmp/site/liger_kernel || { echo "another machine"; exit 9; }
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
go() { t=$1; shift; echo "== $*"; timeout -s INT $t python3 -m rooftile bench "$@" --record --within $((t-25)) --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -i "^left" $OUT/b.log | cut -c1-100; cat $OUT/b.log >> $OUT/all.log; }
date +%T
go 80 rotary_attention --against torch,compile,fa4 --stale
go 100 cross_entropy cross_entropy_ahead cross_entropy_overwrite linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen concat_kv --against torch,compile,liger --stale
date +%T
go 150 mlp gated_mlp attention_decode_e4m3 embedding_accumulate grad_norm geglu_again swiglu_again reglu_again residual_add_overwrite reglu --against torch,compile,liger --stale
date +%T
tar czf $OUT/records.tgz records
