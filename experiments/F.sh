set -u
test -d /tmp/site/nvidia_cutlass_dsl || { echo "another machine"; exit 9; }
xz -dc .gpu/liger.tar.xz | tar -C /tmp/site -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
timeout -s INT 100 python3 -m rooftile bench attention --case B4_T4096_S4096_H32_D64 --against torch,compile,fa4,flex --stale --record --within 80 --jobs 15 >> $OUT/b.log 2>&1; echo att rc $?
tar czf $OUT/records.tgz records
timeout -s INT 130 python3 -m rooftile bench embedding gelu cross_entropy softmax cross_entropy_ahead cross_entropy_overwrite mlp linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen gated_mlp --against torch,compile,liger --stale --record --within 100 --jobs 15 >> $OUT/b.log 2>&1; echo rc $?
grep -i "^left" $OUT/b.log | cut -c1-100
tar czf $OUT/records.tgz records
