# x2: GPU 0 both steps; GPU 1 replays by pytest, hosts' times, decode's lab, linear_cross_entropy. carry: P66a.sh sp0 liger.tar.xz commit dec66; P66b.sh right behind it on the same machine
set -u
mkdir -p /tmp/lig /root/peers /tmp/r0 /tmp/r1; cp .gpu/sp0 /root/peers/; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
cp -r records /tmp/r0/; cp -r records /tmp/r1/
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig
keep() { tar czf $OUT/records$1.tgz -C /tmp/r$1 records; date +%T; }
nvidia-smi -L | cut -c1-40; date +%T
( for m in llama-1.2b:liger gpt2-124m:torch,compile; do
    CUDA_VISIBLE_DEVICES=0 taskset -c 0-5 timeout -s INT -k 10 190 python3 -m rooftile bench train.${m%%:*} --against ${m##*:} --record --folder /tmp/r0/records > $OUT/${m%%:*}.log 2>&1; echo "${m%%:*} rc $?"; tail -4 $OUT/${m%%:*}.log | cut -c1-160; keep 0
  done ) > /tmp/g0.txt 2>&1 &
( export CUDA_VISIBLE_DEVICES=1
  PYTHONPATH=src:tests taskset -c 6-31 timeout -s INT -k 10 90 python3 -m pytest -q -p no:cacheprovider -m gpu tests/test_replay.py > $OUT/replay.log 2>&1; echo "replay rc $?"; grep -a "^FAILED\|^ERROR\|^E  \|passed\|failed" $OUT/replay.log | cut -c1-220 | head; date +%T
  taskset -c 6-31 timeout -s INT -k 10 75 python3 .gpu/dec66/lab.py 45 > $OUT/dec.txt 2>&1; echo "dec rc $?"; cat $OUT/dec.txt | cut -c1-170; date +%T
  taskset -c 6-31 timeout -s INT -k 20 90 python3 -m rooftile bench linear_cross_entropy_ahead linear_cross_entropy_frozen gemv --stale --against torch,compile,liger --record --folder /tmp/r1/records --within 60 --jobs 14 > $OUT/l.log 2>&1; echo "lce rc $?"; grep -i "^left\|^seconds" $OUT/l.log | cut -c1-200; keep 1
  O=$(python3 -c "
from rooftile.workbench.check import all_ops
print(*[o.spec.name for o in all_ops() if o.spec.name not in ('softmax','rmsnorm','layernorm','rope','cross_entropy','add_rmsnorm')])")
  taskset -c 6-31 timeout -s INT -k 20 130 python3 -m rooftile bench $O --case host- --against torch,compile,liger --record --folder /tmp/r1/records --within 95 --jobs 14 > $OUT/h.log 2>&1; echo "host rc $?"; grep -i "^left\|^seconds" $OUT/h.log | cut -c1-200 | head -30; keep 1 ) > /tmp/g1.txt 2>&1 &
wait; cat /tmp/g0.txt /tmp/g1.txt
