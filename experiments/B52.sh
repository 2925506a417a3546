# session 51, after A52.sh on the same machine within 30 s. carry: B52.sh commit sp1 peers2.xz
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
export PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
date +%T
for c in T8_ T4_S65536; do timeout -s INT 80 python3 -m rooftile bench attention --case $c --against torch,compile,fa4,flex --record --within 65 --jobs 15 > $OUT/a$c.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/a$c.log | cut -c1-120; date +%T; done
# the portable kernels beside FlashAttention-2, and all others: rows of D = 64 and 128
timeout -s INT 170 python3 -m rooftile bench attention --case B4_T4096_S4096 --against torch,compile,fa4,flex,fa2 --record --within 150 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
timeout -s INT 150 python3 -m rooftile suites --record --within 130 --jobs 8 > $OUT/s.log 2>&1; echo suites rc $?; tail -6 $OUT/s.log | cut -c1-400; date +%T
tar czf $OUT/records.tgz records
