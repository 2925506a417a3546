# behind R66a on the same machine: GPU 0 attention with all peers; GPU 1 both steps, qkvpacked and rotary, one of the losses. carry: R66b.sh sp1 peers2.xz liger.tar.xz commit
set -u
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site /tmp/lig; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit); Q=src:/tmp/lig:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
keep() { tar czf $OUT/records$1.tgz -C /tmp/r$1 records; date +%T; }
date +%T
( export PYTHONPATH=$Q CUDA_VISIBLE_DEVICES=0
  taskset -c 6-31 timeout -s INT -k 20 $1 python3 -m rooftile bench attention attention_options attention_varlen --stale --against torch,compile,flex,fa4,fa2 --record --folder /tmp/r0/records --within $(($1-40)) --jobs 24 > $OUT/at.log 2>&1; echo "attention rc $?"; grep -i "^left\|^seconds" $OUT/at.log | cut -c1-250; keep 0
  PYTHONPATH=src taskset -c 6-31 timeout -s INT -k 20 45 python3 -m rooftile check attention_varlen attention_options --device cuda --jobs 20 --stale --record --folder /tmp/r0/records --within 35 > $OUT/c.txt 2>&1; echo "check rc $?"; grep -a "^failed" $OUT/c.txt | cut -c1-250 | head -20; tail -1 $OUT/c.txt | cut -c1-300; keep 0 ) > /tmp/g0.txt 2>&1 &
( export PYTHONPATH=src:/tmp/lig CUDA_VISIBLE_DEVICES=1
  for m in llama-1.2b:liger gpt2-124m:torch,compile; do
    taskset -c 0-5 timeout -s INT -k 10 190 python3 -m rooftile bench train.${m%%:*} --against ${m##*:} --record --folder /tmp/r1/records > $OUT/${m%%:*}.log 2>&1; echo "${m%%:*} rc $?"; tail -4 $OUT/${m%%:*}.log | cut -c1-120; keep 1
  done
  taskset -c 0-5 timeout -s INT -k 20 60 python3 -m rooftile bench attention_qkvpacked rotary_attention --stale --against torch,compile --record --folder /tmp/r1/records --within 45 --jobs 6 > $OUT/aq.log 2>&1; echo "qkv rc $?"; grep -i "^left\|^seconds" $OUT/aq.log | cut -c1-250; keep 1
  taskset -c 0-5 timeout -s INT -k 10 $2 python3 -m rooftile bench losses.gpt2-124m --record --folder /tmp/r1/records > $OUT/losses.log 2>&1; echo "losses rc $?"; keep 1 ) > /tmp/g1.txt 2>&1 &
wait; cat /tmp/g0.txt /tmp/g1.txt
