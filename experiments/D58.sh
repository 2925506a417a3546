# after A57.sh. carry: D58.sh lab58.py ce commit sp1 peers2.xz
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
date +%T; timeout -k 5 100 python3 .gpu/lab58.py 6 > $OUT/lab58.txt 2>&1; echo lab $?; cut -c1-1500 $OUT/lab58.txt; date +%T
for c in B1_T16384_S16384_H16_D128 B4_T4096_S4096_H16_D128 B16_T1024_S1024_H16_D128; do PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages timeout -s INT -k 20 110 python3 -m rooftile bench attention --case $c --against torch,compile,fa4,flex,fa2 --stale --record --within 90 --jobs 15 > $OUT/b$c.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b$c.log | cut -c1-160; date +%T; done
tar czf $OUT/records.tgz records
