# behind R63 on the same machine (one function block): rmsnorm and softmax with quack, then GPT-2's step. carry: R63b.sh sp1 peers2.xz liger.tar.xz commit. ~330 s
set -u
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site /tmp/lig; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -; xz -dc .gpu/liger.tar.xz | tar -C /tmp/lig -xf -
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src:/tmp/lig:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages
keep() { tar czf $OUT/records.tgz records; date +%T; }
timeout -s INT -k 20 170 python3 -m rooftile bench rmsnorm softmax --against torch,compile,liger,quack --stale --record --within 140 --jobs 15 > $OUT/q.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/q.log | cut -c1-300; keep
export PYTHONPATH=src:/tmp/lig
timeout -s INT -k 10 170 python3 -m rooftile bench train.gpt2-124m --against torch,compile --record > $OUT/gpt2.log 2>&1; echo gpt2 rc $?; tail -3 $OUT/gpt2.log | cut -c1-300; keep
