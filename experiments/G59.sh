# after F59.sh. carry: G59.sh commit. Gates whose kernels changed, then suites again from where the record ends.
set -u
date +%T
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
keep() { tar czf $OUT/records.tgz records; date +%T; }
timeout -s INT -k 20 190 python3 -m rooftile check softmax gemv gelu layernorm add_layernorm embedding gemm linear rope_overwrite attention_options attention --device cuda --jobs 16 --stale --record --within 160 > $OUT/c.txt 2>&1; echo check rc $?; grep -a ^failed $OUT/c.txt | cut -c1-250 | head; tail -2 $OUT/c.txt | cut -c1-400; keep
timeout -s INT -k 20 240 python3 -m rooftile suites --record --stale --within 190 --jobs 16 > $OUT/s.log 2>&1; echo suites rc $?; tail -14 $OUT/s.log | cut -c1-400; keep
