# behind P66a on the same machine: GPU 0 the losses; GPU 1 attention with all peers, qkvpacked and rotary, hosts' times with quack. carry: P66b.sh sp1 peers2.xz liger.tar.xz commit
set -u
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site /tmp/lig; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
test -d /tmp/r0 || { mkdir -p /tmp/r0 /tmp/r1; cp -r records /tmp/r0/; cp -r records /tmp/r1/; }
export ROOFTILE_COMMIT=$(cat .gpu/commit); Q=src:/tmp/lig:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
keep() { tar czf $OUT/records$1.tgz -C /tmp/r$1 records; date +%T; }
date +%T
( export PYTHONPATH=src CUDA_VISIBLE_DEVICES=0
  for l in llama-1.2b gpt2-124m; do taskset -c 0-5 timeout -s INT -k 10 240 python3 -m rooftile bench losses.$l --record --folder /tmp/r0/records > $OUT/losses.$l.log 2>&1; echo "losses.$l rc $?"; tail -3 $OUT/losses.$l.log | cut -c1-160; keep 0; done ) > /tmp/g0.txt 2>&1 &
( export PYTHONPATH=$Q CUDA_VISIBLE_DEVICES=1
  taskset -c 6-31 timeout -s INT -k 20 360 python3 -m rooftile bench attention attention_options attention_varlen --stale --against torch,compile,flex,fa4,fa2 --record --folder /tmp/r1/records --within 320 --jobs 24 > $OUT/at.log 2>&1; echo "attention rc $?"; grep -i "^left\|^seconds" $OUT/at.log | cut -c1-300; keep 1
  taskset -c 6-31 timeout -s INT -k 20 60 python3 -m rooftile bench attention_qkvpacked rotary_attention --stale --against torch,compile --record --folder /tmp/r1/records --within 40 --jobs 24 > $OUT/aq.log 2>&1; echo "qkv rc $?"; grep -i "^left\|^seconds" $OUT/aq.log | cut -c1-300; keep 1
  taskset -c 6-31 timeout -s INT -k 20 65 python3 -m rooftile bench softmax rmsnorm layernorm rope cross_entropy add_rmsnorm --case host- --against torch,compile,liger,quack --record --folder /tmp/r1/records --within 45 --jobs 24 > $OUT/hq.log 2>&1; echo "host rc $?"; grep -i "^left\|^seconds" $OUT/hq.log | cut -c1-300; keep 1 ) > /tmp/g1.txt 2>&1 &
wait; cat /tmp/g0.txt /tmp/g1.txt
