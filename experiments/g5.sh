set -u
export ROOFTILE_COMMIT=$(cat .gpu/commit) PYTHONPATH=src
mkdir -p /root/peers; cp .gpu/sitepart0 /root/peers/
timeout -s INT 150 python3 -m rooftile bench layernorm --against torch,compile --stale --record --within 110 --jobs 15 > $OUT/b.log 2>&1; echo rc $?; grep -v "│" $OUT/b.log | tail -5
PYTHONPATH=src timeout 40 python3 .gpu/experiments/rms_y.py run 2>&1 | head -3 | tee $OUT/ry.log
tar czf $OUT/records.tgz records/nvidia-h100-80gb-hbm3
