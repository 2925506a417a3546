set -u
mkdir -p /tmp/site; xz -dc .gpu/liger.tar.xz | tar -C /tmp/site -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site
timeout -s INT 200 python3 -m rooftile bench embedding gelu cross_entropy cross_entropy_overwrite cross_entropy_ahead mlp linear_cross_entropy linear_cross_entropy_ahead linear_cross_entropy_frozen gated_mlp softmax --against torch,compile,liger --stale --record --within ${1:-150} --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -c left: $OUT/b.log; grep -i left: $OUT/b.log | cut -c1-60 | sort | uniq -c | head -40; tail -3 $OUT/b.log | cut -c1-300
tar czf $OUT/records.tgz records
