# after X56.sh on the same machine. carry: Y56.sh commit sp1 peers2.xz
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
export PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
date +%T
timeout -s INT -k 20 190 python3 -m rooftile bench attention --case B4_T4096_S4096 --against torch,compile,fa4,flex,fa2 --stale --record --within 170 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
timeout -s INT -k 20 250 python3 -m rooftile bench attention --against torch,compile,fa4,flex --stale --record --within 230 --jobs 15 > $OUT/a.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/a.log | cut -c1-120; date +%T
tar czf $OUT/records.tgz records
