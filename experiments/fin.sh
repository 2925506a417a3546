set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
mkdir -p records; tar xzf .gpu/y3.tgz 2>/dev/null
timeout -s INT 110 python3 -m rooftile bench attention_qkvpacked linear_cross_entropy_ahead --against torch,compile,fa4,flex,liger --stale --record --within 90 --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -i left $OUT/b.log | tail -3 | cut -c1-300; tail -2 $OUT/b.log
tar czf $OUT/records.tgz records
