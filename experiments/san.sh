export PYTHONPATH=src PYTORCH_NO_CUDA_MEMORY_CACHING=1 ROOFTILE_CACHE=/tmp/rc; nvidia-smi -L; mkdir -p /tmp/s
cat > /tmp/one.sh <<'X'
t=$1; n=$2; p=; [ $t = memcheck ] && p="--padding 4096"
s=$(date +%s); timeout 300 compute-sanitizer --tool $t --error-exitcode 9 --print-limit 5 $p python3 tests/sanitized.py $n > /tmp/s/$t.$n 2>&1; rc=$?
echo "$t $n rc $rc $(( $(date +%s)-s ))s $(grep launches /tmp/s/$t.$n)" >> /tmp/s/all; [ $rc = 0 ] || head -c 6000 /tmp/s/$t.$n > $OUT/$t.$n.txt.part
X
python3 - > /tmp/list <<'P'
from rooftile.workbench.check import all_ops
import rooftile.ops
names = sorted((o.spec.name for o in all_ops()), key=lambda n: (not n.startswith("attention"), not n.startswith(("gated", "linear", "gemm", "rotary", "mlp")), n))
for n in names:
    for t in ("racecheck", "memcheck", "initcheck"): print(t, n)
for t in ("racecheck", "memcheck", "initcheck"): print(t, "planted." + t)
P
wc -l /tmp/list; timeout 540 xargs -P 14 -L 1 bash /tmp/one.sh < /tmp/list
wc -l < /tmp/s/all; grep -v "rc 0" /tmp/s/all; sort -t' ' -k5 -n -r /tmp/s/all | awk '{print $5,$0}' | sort -n -r | head -12; cp /tmp/s/all $OUT/all.txt; cat $OUT/*.part > $OUT/fails.txt 2>/dev/null; rm -f $OUT/*.part; python3 - <<'P'
want = [tuple(l.split()) for l in open("/tmp/list")]; done = {tuple(l.split()[:2]) for l in open("/tmp/s/all")}
print("left", [w for w in want if w not in done])
P
