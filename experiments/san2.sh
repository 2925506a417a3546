export PYTHONPATH=src PYTORCH_NO_CUDA_MEMORY_CACHING=1 ROOFTILE_CACHE=/tmp/rc; mkdir -p /tmp/s $OUT/s
cat > /tmp/one.sh <<'X'
t=$1; n=$2; p=; [ $t = memcheck ] && p="--padding 4096"; l=5; [ $t = racecheck ] && l=1000
s=$(date +%s); timeout 300 compute-sanitizer --tool $t --error-exitcode 9 --print-limit $l $p python3 tests/sanitized.py $n > /tmp/s/$t.$n 2>&1; rc=$?
echo "$t $n rc $rc $(( $(date +%s)-s ))s $(grep launches /tmp/s/$t.$n)" >> /tmp/s/all; echo "#### $t $n rc $rc" >> /tmp/s/$t.$n
X
for n in attention attention_options attention_varlen attention_qkvpacked rotary_attention; do echo racecheck $n; done > /tmp/list
for t in racecheck memcheck initcheck; do for n in softmax log_softmax embedding embedding_accumulate masked_softmax planted.$t; do echo $t $n; done; done >> /tmp/list
echo racecheck unseen.racecheck >> /tmp/list; echo initcheck unseen.initcheck >> /tmp/list
timeout 250 xargs -P 14 -L 1 bash /tmp/one.sh < /tmp/list
cat /tmp/s/all; rm -rf $OUT/s; (cd /tmp/s; tar czf $OUT/san.tgz *)
