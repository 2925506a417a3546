# after A57.sh. carry: B58.sh d128.py commit sp1 peers2.xz
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
test -f /root/peers/sp0 || { echo "another machine"; exit 9; }
mkdir -p /tmp/site; cat /root/peers/sp0 .gpu/sp1 | xz -dc -T0 | tar -C /tmp/site -xf -; xz -dc .gpu/peers2.xz | tar -C /tmp/site -xf -
date +%T; PYTHONPATH=src:/tmp/site:/tmp/site/nvidia_cutlass_dsl/dsl_packages timeout -k 5 150 python3 .gpu/d128.py 12 > $OUT/d128.txt 2>&1; echo d128 $?; cut -c1-900 $OUT/d128.txt; date +%T
ops="quantize quantize_affine add_rmsnorm_quantize rmsnorm_quantize swiglu_quantize dequantize concat_kv rope"
timeout -s INT -k 20 100 python3 -m rooftile check $ops attention_decode --device cuda --jobs 16 --stale --record --within 80 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250; tail -2 $OUT/c.txt | cut -c1-400; date +%T
timeout -s INT -k 20 110 python3 -m rooftile bench $ops attention_decode --against torch,compile --stale --record --within 95 --jobs 15 > $OUT/d.log 2>&1; echo bench rc $?; grep -i "^left\|^seconds" $OUT/d.log | cut -c1-300; date +%T
tar czf $OUT/records.tgz records
