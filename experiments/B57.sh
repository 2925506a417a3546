# after A57.sh. carry: B57.sh d128.py commit sp1 peers2.xz
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
export PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
date +%T; timeout -k 5 150 python3 .gpu/d128.py 12 > $OUT/d128.txt 2>&1; echo d128 $?; cut -c1-900 $OUT/d128.txt; date +%T
# if nothing is to be changed: rows of D = 128 again, on this card
for c in B4_T4096_S4096_H16_D128 B1_T16384_S16384_H16_D128; do timeout -s INT -k 20 130 python3 -m rooftile bench attention --case $c --against torch,compile,fa4,flex,fa2 --record --within 100 --jobs 15 > $OUT/b$c.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b$c.log | cut -c1-120; date +%T; done
tar czf $OUT/records.tgz records
