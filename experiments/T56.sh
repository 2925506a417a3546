# after B56.sh on the same machine: what lies a little short of its line, by every config. carry: T56.sh commit
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
t() { timeout -s INT -k 10 45 python3 -m rooftile tune $1 --case $2 --every $3 --ship --jobs 15 > $OUT/tune.$1.txt 2>&1; echo tune $1 $?; tail -3 $OUT/tune.$1.txt | cut -c1-200; date +%T; }
t layernorm M8192_N8192-bfloat16 cuda
t scan M4096_N65536-bfloat16 cuda
t dropout_add_norm M16384_N4096-bfloat16 triton
t embedding M32768_V50304_N768-bfloat16 cuda
tar czf $OUT/tuned.tgz src/rooftile/tuned
