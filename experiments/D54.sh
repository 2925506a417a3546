# session 54, after C54.sh on the same machine. carry: D54.sh commit sp1 peers2.xz liger.tar.xz
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site /tmp/lig; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
date +%T
export PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
timeout -s INT -k 20 150 python3 -m rooftile bench attention --case B4_T4096_S4096_H16_D128 --against torch,compile,fa4,flex,fa2 --record --within 125 --jobs 15 > $OUT/b.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/b.log | cut -c1-120; grep "one_pass\|fa2" $OUT/b.log | cut -c1-150; date +%T
tar czf $OUT/records.tgz records
for c in T8_ T4_S65536; do timeout -s INT -k 20 60 python3 -m rooftile bench attention --case $c --against torch,compile,fa4,flex --record --within 45 --jobs 15 > $OUT/a$c.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/a$c.log | cut -c1-120; date +%T; done
tar czf $OUT/records.tgz records
export PYTHONPATH=src:/tmp/lig
timeout -s INT -k 20 175 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; tail -4 $OUT/gpt2.log | cut -c1-200; date +%T
timeout -s INT -k 20 140 python3 -m rooftile bench train.llama-1.2b --against liger --record > $OUT/llama.log 2>&1; echo llama rc $?; tail -4 $OUT/llama.log | cut -c1-200; date +%T
tar czf $OUT/records.tgz records
