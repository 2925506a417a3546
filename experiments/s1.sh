# first call, carries sitepart0: the gate of what is stale, then the experiments of decode and windows
mkdir -p /root/peers; cp .gpu/sitepart0 /root/peers/; export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
timeout 120 python .gpu/dec2.py 2>&1 | tee $OUT/dec2.txt
timeout 120 python .gpu/win.py 2>&1 | tee $OUT/win.txt
