set -u
test -d /tmp/site/nvidia_cutlass_dsl || { echo "another machine"; exit 9; }
xz -dc .gpu/liger.tar.xz | tar -C /tmp/site -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
tar czf $OUT/records.tgz records
timeout -s INT 85 python3 -m rooftile bench cross_entropy --against torch,compile,liger --stale --record --within 62 --jobs 15 >> $OUT/b.log 2>&1; echo rc $?
grep -i "^left" $OUT/b.log | cut -c1-100
tar czf $OUT/records.tgz records
