# labs: mask62, bias62, gemv62; the masked copy beside the old one (ab62). carry: L62.sh mask62 bias62 gemv62 ab62.py inc_old commit
set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
for l in "mask62 45" "bias62 60" "gemv62 45"; do set -- $l; timeout -s INT -k 10 90 python3 .gpu/$1/lab.py $2 > $OUT/$1.txt 2>&1; echo "== $1 $?"; date +%T; done
for i in 1 2; do for k in old new; do timeout -s INT -k 5 60 python3 .gpu/ab62.py $k > $OUT/ab_$k$i.txt 2> $OUT/ab_err_$k$i.txt; done; done; date +%T
python3 - <<'P'
import json,os,statistics as s
o=os.environ["OUT"]; g=lambda k:[json.loads(next(l for l in open(f"{o}/ab_{k}{i}.txt") if l.startswith("AB "))[3:]) for i in (1,2)]
try:
    a,b=g("old"),g("new")
    for n in a[0]: print(f"{n:24s} old {s.median(x[n] for x in a):8.2f} new {s.median(x[n] for x in b):8.2f} {s.median(x[n] for x in a)/s.median(x[n] for x in b):.3f}")
except Exception as e: print("ab", e); os.system(f"tail -3 {o}/ab_err_old1.txt")
P
tail -40 $OUT/mask62.txt | cut -c1-220
