# behind D64a on the same machine: GPU 0 with quack, GPU 1 what is left and the gate. carry: D64b.sh sp1 peers2.xz liger.tar.xz commit
set -u
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site /tmp/lig; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
rm -rf /tmp/r0 /tmp/r1; mkdir -p /tmp/r0 /tmp/r1; cp -r records /tmp/r0/; cp -r records /tmp/r1/
export ROOFTILE_COMMIT=$(cat .gpu/commit); Q=src:/tmp/lig:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
keep() { tar czf $OUT/records$1.tgz -C /tmp/r$1 records; date +%T; }
date +%T
( export PYTHONPATH=$Q CUDA_VISIBLE_DEVICES=0
  timeout -s INT -k 20 350 python3 -m rooftile bench rmsnorm layernorm add_rmsnorm softmax cross_entropy rope --against torch,compile,liger,quack --stale --record --folder /tmp/r0/records --within 300 --jobs 14 > $OUT/q.log 2>&1; echo "quack rc $?"; grep -i "^left\|^seconds" $OUT/q.log | cut -c1-400; keep 0
  timeout -s INT -k 20 60 python3 -m rooftile bench attention rope_overwrite --against torch,compile,flex,fa4 --stale --record --folder /tmp/r0/records --within 30 --jobs 14 > $OUT/at.log 2>&1; echo "attention rc $?"; keep 0 ) > /tmp/g0.txt 2>&1 &
( export PYTHONPATH=src:/tmp/lig CUDA_VISIBLE_DEVICES=1
  timeout -s INT -k 20 150 python3 -m rooftile bench $(cat .gpu/left) --against torch,compile,liger --stale --record --folder /tmp/r1/records --within 100 --jobs 14 > $OUT/l.log 2>&1; echo "left rc $?"; grep -i "^left\|^seconds" $OUT/l.log | cut -c1-400; keep 1
  timeout -s INT -k 20 270 python3 -m rooftile check --device cuda --jobs 15 --stale --record --folder /tmp/r1/records --within 225 > $OUT/c.txt 2>&1; echo "check rc $?"; grep -a ^failed $OUT/c.txt | cut -c1-250 | head -5; tail -2 $OUT/c.txt | cut -c1-400; keep 1 ) > /tmp/g1.txt 2>&1 &
wait; cat /tmp/g0.txt /tmp/g1.txt
