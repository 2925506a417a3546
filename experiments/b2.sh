set -u
mkdir -p /tmp/site; test -d /tmp/site/nvidia_cutlass_dsl || { cat /root/peers/sitepart0 .gpu/sitepart1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -; }; xz -dc .gpu/liger.tar.xz | tar -C /tmp/site -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
W=$1; shift
timeout -s INT $((W+40)) python3 -m rooftile bench "$@" --against torch,compile,liger,quack --stale --record --within $W --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -c left: $OUT/b.log; grep -i left: $OUT/b.log | cut -c1-60 | sort | uniq -c | head -40; tail -3 $OUT/b.log | cut -c1-300
tar czf $OUT/records.tgz records
