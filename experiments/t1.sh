bash .gpu/u3.sh
mkdir -p /tmp/lig; PYTHONPATH=src:/tmp/lig timeout 200 python3 .gpu/small8.py 2>$OUT/err.log; tail -2 $OUT/err.log
