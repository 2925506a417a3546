# carry: B50.sh commit sp1 peers2.xz; after C50.
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
export PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
date +%T
for c in T8_ T4_S65536; do timeout -s INT 60 python3 -m rooftile bench attention --case $c --against torch,compile,fa4,flex --record --within 45 --jobs 15 > $OUT/a$c.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/a$c.log | cut -c1-120; date +%T; done
timeout -s INT 110 python3 -m rooftile bench attention --case B1_T16384_S16384_H16_D128 --against torch,compile,fa4,flex --record --within 90 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-120
date +%T; tar czf $OUT/records.tgz records
