if nvidia-smi -L | grep -q H200; then bash .gpu/y1.sh; exit; fi
PYTHONPATH=src timeout 120 python3 .gpu/small9.py 2>$OUT/err.log; tail -2 $OUT/err.log
sed -i 's/-s INT 580/-s INT 470/' .gpu/k6.sh; bash .gpu/k6.sh
