set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit)
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
export PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
date +%T
timeout -s INT -k 20 230 python3 -m rooftile bench attention --against torch,compile,fa4,flex,fa2 --stale --record --within 190 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-200; date +%T
tar czf $OUT/records.tgz records
